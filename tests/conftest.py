"""What all tests share."""

from hypothesis import Phase, settings

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],  # to explain takes longer than all tests
)
settings.load_profile("repeatable")
