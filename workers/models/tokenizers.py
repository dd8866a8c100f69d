"""Word-level tokenizers for the built-in models: no download, every prompt its own tokens."""

from collections.abc import Sequence
from string import ascii_lowercase, digits, punctuation

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, START, END = SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
# transformers' CLIP gives an end token with id 2 a legacy meaning, hence START before END.
PAD_ID, UNKNOWN_ID, START_ID, END_ID = range(4)

# fmt: off
WORDS = (
    "a", "an", "the", "and", "on", "in", "of", "with", "at", "by", "photo", "painting", "drawing",
    "picture", "cat", "dog", "bird", "fish", "horse", "tree", "house", "sky", "sea", "city", "red",
    "green", "blue", "yellow", "black", "white", "big", "small", "happy", "old", "new",
)
# fmt: on


def vocabulary(words: Sequence[str] = WORDS) -> dict[str, int]:
    """Map tokens to ids: special tokens, ``words``, then characters to spell other words with."""
    characters = ascii_lowercase + digits + punctuation
    pieces = (*characters, *(f"##{character}" for character in characters))
    tokens = dict.fromkeys((*SPECIAL_TOKENS, *words, *pieces))
    return {token: index for index, token in enumerate(tokens)}


def word_tokenizer(
    max_length: int, words: Sequence[str] = WORDS, *, start: bool = True
) -> PreTrainedTokenizerFast:
    """Make a lower-casing tokenizer that has a token for each known word and spells out others.

    Spelling keeps any two prompts of known characters apart, which one unknown token would not.

    Args:
        max_length: Tokens after which a prompt is cut, start and end tokens included.
        words: Known words, in lower case.
        start: Whether a prompt begins with a start token, as for CLIP, or not, as for T5.
    """
    tokenizer = Tokenizer(models.WordPiece(vocabulary(words), unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}" if start else f"$A {END}",
        special_tokens=[(START, START_ID), (END, END_ID)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=START,
        eos_token=END,
    )
