"""Checks of the rows that a network as data takes: an image or numbers, and a label."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdtrain.datasets.formats.reading import Malformed
from hvdtrain.datasets.rows import Forms, RowChecks, RowError, as_array, forms_of
from hvdtrain.datasets.validation import valid_images, valid_labels, valid_numbers
from hvdtrain.errors import UserError
from hvdtrain.networks.layers import text
from hvdtrain.system.text import printable


class ImagesAndLabels(RowChecks):
    """Rows of an image, in any form that `valid_images` takes, and a label below the number of classes.

    classes: their names, which labels may be as well; none where labels are numbers to predict.
    """

    arrays = 2
    of_float64 = "are float64, and become float32"

    def in_memory(self, where: str, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        if len(arrays) != 2:
            remedy = "give two, images or numbers and labels, or write a task"
            raise UserError(f"{where}: rows have {len(arrays)} array(s), and a network as data takes two", remedy)
        images, labels = arrays
        images = valid_images(where, images)
        return images, self._labels(where, labels, len(images))

    def _labels(self, where: str, labels: np.ndarray, count: int) -> np.ndarray:
        if self.classes:
            return valid_labels(where, labels, count, self.classes)
        numbers = valid_numbers(where, labels.reshape(len(labels), -1))
        if numbers.shape != (count, 1):
            raise UserError(f"{where}: labels have shape {labels.shape}", "give each row one number to predict")
        return numbers[:, 0]

    def row(self, place: str, item: Any) -> tuple[np.ndarray, ...]:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise RowError(f"{place}: is of type {type(item).__name__}", "return a tuple of image and label")
        image, label = as_array(item[0]), self.numbered(as_array(item[1]))
        if label is None:
            raise Malformed(f"has the label {printable(str(item[1])):.100}, which is not among the classes")
        if label.dtype.kind not in ("iu" if self.classes else "iuf") or label.size != 1:
            wanted = "an integer" if self.classes else "a number"
            raise RowError(f"{place}: has a label of type {label.dtype} and shape {label.shape}", f"return {wanted}")
        if image.ndim not in (1, 2, 3):
            raise Malformed(f"the image has shape {image.shape}, not (height, width) or with channels")
        valid = valid_images(place, image[np.newaxis])[0]
        if not self.classes:
            return valid, self._labels(place, label.reshape(1), 1)[0]
        number = int(label.reshape(()))
        if not 0 <= number < self.classes:
            raise Malformed(f"the label is {number}, and the data has {self.classes} classes, from 0 on")
        return valid, np.array(number, np.int64)

    def batch(self, name: str, arrays: tuple[np.ndarray, ...], forms: Forms) -> tuple[np.ndarray, ...]:
        images, labels = arrays
        images = valid_images(name, images)
        if forms_of((images,)) != forms[:1]:
            raise Malformed("has images of another shape or type than the first")
        return images, self._labels(name, labels, len(images))

    def difference(self, forms: Forms, first: Forms) -> str:
        (shape, dtype), (expected, expected_type) = forms[0], first[0]
        return f"the image is {dtype} of {text(shape)}, the first one is {expected_type} of {text(expected)}"
