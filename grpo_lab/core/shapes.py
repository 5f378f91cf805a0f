"""Shapes in annotations: `Float[Tensor, "P G"]`, checked under pytest; a plain `Tensor` where jaxtyping is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:  # a development dependency: using the package must not need it

        class Float:
            """The array type of an annotation, without its shape."""

            def __class_getitem__(cls, array_and_shape: tuple[Any, str]) -> Any:
                return array_and_shape[0]

        Bool = Int = Shaped = Float

__all__ = ["Bool", "Float", "Int", "Shaped"]
