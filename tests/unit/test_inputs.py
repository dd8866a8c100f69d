"""Arrays in a request: every kind becomes bytes that can be read back exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as npst
from PIL import Image

from sidestream.engine import RequestError
from sidestream.engine.inputs import DEPTH_LIMIT, is_array, split_arguments
from sidestream.ipc_ext.tensors import DTYPES, HostTensor


def only_input(value):
    plain, (tensor,) = split_arguments({"image": value})
    assert plain == {}
    assert tensor.name == "image"
    assert tensor.data.nbytes == tensor.descriptor.nbytes
    return tensor


def read(tensor):
    return HostTensor(tensor.data, tensor.descriptor.dtype, tensor.descriptor.shape)


NUMPY_DTYPES = [name for name, dtype in DTYPES.items() if dtype.numpy is not None]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_arrays_of_every_dtype(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    tensor = only_input(array)
    assert (tensor.form, tensor.descriptor.dtype) == ("numpy", dtype)
    np.testing.assert_array_equal(read(tensor).numpy(), array)


@given(npst.arrays(np.float32, npst.array_shapes(min_dims=0, max_dims=4, min_side=0)))
def test_numpy_arrays_of_every_shape(array):
    tensor = only_input(array)
    assert tensor.descriptor.shape == array.shape
    np.testing.assert_array_equal(read(tensor).numpy(), array)


@pytest.mark.parametrize("view", [np.transpose, np.flip, lambda array: array[:, ::2]])
def test_numpy_views_are_made_contiguous(view):
    array = view(np.arange(12, dtype=np.int32).reshape(3, 4))
    np.testing.assert_array_equal(read(only_input(array)).numpy(), array)


def test_foreign_byte_order_is_turned():
    array = np.array([1.5, -2.0], dtype=">f4")
    np.testing.assert_array_equal(read(only_input(array)).numpy(), [1.5, -2.0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors_of_every_dtype(dtype):
    value = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    tensor = only_input(value)
    assert (tensor.form, tensor.descriptor.dtype) == ("torch", dtype)
    assert tensor.descriptor.shape == (2, 3)
    assert torch.equal(read(tensor).torch(), value)


def test_torch_views_and_gradients():
    value = torch.arange(6.0).reshape(2, 3).requires_grad_().t()
    assert torch.equal(read(only_input(value)).torch(), value.detach())
    value = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert torch.equal(read(only_input(value)).torch(), value)
    assert torch.equal(read(only_input(value.imag)).torch(), value.imag)  # lazily negated


@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        ("L", (5, 4)),
        ("RGB", (5, 4, 3)),
        ("RGBA", (5, 4, 4)),
        ("1", (5, 4, 3)),
        ("P", (5, 4, 3)),
        ("CMYK", (5, 4, 3)),
    ],
)
def test_pictures_of_every_mode(mode, shape):
    picture = Image.new("RGB", (4, 5), (10, 200, 30)).convert(mode)
    tensor = only_input(picture)
    assert (tensor.form, tensor.descriptor.dtype) == ("pil", "uint8")
    expected = picture if len(shape) == 2 or mode == "RGBA" else picture.convert("RGB")
    assert tensor.descriptor.shape == shape
    np.testing.assert_array_equal(read(tensor).numpy(), np.asarray(expected))


def test_lists_of_arrays_are_numbered():
    arrays = [np.zeros(2, np.uint8), np.ones((1, 3), np.float32)]
    plain, inputs = split_arguments({"strength": 0.5, "image": arrays, "mask": (arrays[0],)})
    assert plain == {"strength": 0.5}
    assert [tensor.name for tensor in inputs] == ["image.0", "image.1", "mask.0"]


def test_plain_data_stays():
    plain = {
        "none": None,
        "flag": True,
        "sizes": [1, 2.5, [3]],
        "pair": (4, 5),
        "table": {"deep": {"text": "x"}},
        "empty": [],
    }
    assert split_arguments(plain) == (plain, [])


def nested(depth):
    return [] if depth == 0 else [nested(depth - 1)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "image holds a object"),
        ({1, 2}, "image holds a set"),
        (b"bytes", "image holds a bytes"),
        (np.float64(0.5), "image holds a float64"),
        ({1: 2}, "image holds a dict"),
        ([np.zeros(1), 1], "image holds a ndarray"),
        ({"a": torch.zeros(1)}, "image holds a Tensor"),
        (nested(DEPTH_LIMIT), "image is nested more than 32 deep"),
        (np.array(["a"], dtype=object), "image has dtype object; valid dtypes: bool, "),
        (np.zeros(2, "datetime64[s]"), r"image has dtype datetime64\[s\]"),
        (np.zeros(2, np.uint16), "image has dtype uint16"),
        (torch.zeros(2).to(torch.float8_e4m3fn), "image has dtype float8_e4m3fn"),
        (torch.zeros(2).to_sparse(), "image is no tensor of plain memory"),
        (torch.zeros(2, device="meta"), "image is no tensor of plain memory"),
        (np.zeros((1,) * 17, np.uint8), "image has 17 dimensions; at most 16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_anything_else_is_refused_by_name(value, reason):
    with pytest.raises(RequestError, match=f"^{reason}"):
        split_arguments({"image": value})


def test_what_counts_as_an_array():
    assert is_array(torch.zeros(1))
    assert is_array(np.zeros(1))
    assert is_array(Image.new("L", (1, 1)))
    assert not is_array([np.zeros(1)])
    assert not is_array(1.0)
