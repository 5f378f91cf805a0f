"""Shapes in annotations: `Float[Tensor, "P G"]`, checked under pytest; a plain `Tensor` where jaxtyping is absent."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or find_spec("jaxtyping"):
    from jaxtyping import Bool, Float, Int, Shaped
else:  # a development dependency

    class Float:
        """The array type of an annotation, without its shape."""

        def __class_getitem__(cls, array_and_shape):
            return array_and_shape[0]

    Bool = Int = Shaped = Float
