"""The sum over all shards of a global batch (`--shards`) in a fixed order: the same bits on any number of ranks.

Additions of the same numbers in the same order give the same bits, whoever makes them. The order is a binary tree over
the numbers of the shards: node (l, i) is the sum of the shards from i 2^l to (i + 1) 2^l - 1, which is the sum of its
halves (l - 1, 2 i) and (l - 1, 2 i + 1). Shards without rows are absent, and a node with one half is that half.

A rank adds two shards or sums as soon as it has both halves of a node. What is left are the sums of subtrees: of a
range of shards, at most two of each level. It cuts each into parts, and sends each part to the rank that adds it; then
each rank sends its part of the total to all. Two ranks both add all elements, which saves the second message, and sends
no more bytes if each has a single subtree.

With V shards, an element of a shard takes part in at most h = ceil(log2 V) additions. Each is rounded, in float32 by at
most 2^-24 of its result, so the error is at most h 2^-24 sum |x|, to first order (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, section 4.2).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from hvdtrain.interfaces.combining import Types
from hvdtrain.interfaces.strategy import Group

Node = tuple[int, int]
"""Level and index of the root of a subtree."""
NOTHING = np.empty(0)


class Sum(NamedTuple):
    """The sum of a subtree, or a part of its elements."""

    arrays: list[np.ndarray]
    memory: np.ndarray = NOTHING
    """The message that holds the arrays, float64; NOTHING if they belong to the framework, and may not be changed."""


class Tree:
    """The order in which shards with these numbers are added."""

    def __init__(self, shards: Iterable[int]) -> None:
        present = list(shards)
        self._height = max(present, default=0).bit_length()
        self._nodes = {(level, shard >> level) for shard in present for level in range(self._height)}

    def insert(self, sums: dict[Node, Sum], node: Node, value: Sum, add: Callable[[Sum, Sum], Sum]) -> None:
        """Add the sum of a node to those of others; two halves of one node are replaced by their sum.

        add: called with the left half and the right one.
        """
        level, index = node
        while level < self._height:
            sibling = (level, index ^ 1)
            if sibling in sums:
                other = sums.pop(sibling)
                value = add(other, value) if index % 2 else add(value, other)
            elif sibling in self._nodes:
                break
            level, index = level + 1, index >> 1
        sums[level, index] = value

    def subtrees(self, shards: Iterable[int]) -> list[Node]:
        """The largest subtrees that have no other shards than these."""
        sums: dict[Node, Sum] = {}
        for shard in shards:
            self.insert(sums, (0, shard), Sum([]), lambda left, _: left)
        return sorted(sums)


@functools.lru_cache(maxsize=8)  # asked for in each step
def _order(by_rank: tuple[tuple[int, ...], ...]) -> tuple[Tree, list[list[Node]]]:
    """The tree over the shards of all ranks, and the subtrees of each rank."""
    tree = Tree(itertools.chain.from_iterable(by_rank))
    return tree, [tree.subtrees(of_rank) for of_rank in by_rank]


class MessageLayout:
    """How arrays lie in a message of float64 words: after the room for a report, those of float64, then of float32."""

    def __init__(self, types: Types, room: int) -> None:
        self.room, ends = room, [0, 0]
        self._places = []
        """Of each array: 0 if it is float64, else 1; its slice of all elements of its type; its shape."""
        for kind, shape in types:
            number = int(kind is np.float32)
            first, ends[number] = ends[number], ends[number] + math.prod(shape)
            self._places.append((number, slice(first, ends[number]), shape))
        self._middle = room + ends[0]
        self.length = self._middle + -(-ends[1] // 2)

    def new(self) -> Sum:
        """Arrays whose values are to be set, in a message of their own."""
        message = np.empty(self.length)
        message[-1:] = 0  # half of it may belong to no array
        return Sum(self.arrays(message[self.room :]), message)

    def elements(self, words: np.ndarray, first: int) -> list[np.ndarray]:
        """The float64 elements in words of a message, and the float32 ones. first: the number of the first word."""
        doubles = max(self._middle - first, 0)
        return [words[:doubles], words[doubles:].view(np.float32)]

    def arrays(self, words: np.ndarray) -> list[np.ndarray]:
        """All words after the room as arrays."""
        elements = self.elements(words, self.room)
        return [elements[number][place].reshape(shape) for number, place, shape in self._places]


class TreeSum:
    """The sum over the shards of a step: `add` this rank's, `exchange` the sums of all ranks, and take the `total`.

    by_rank: the numbers of each rank's shards. types: of the arrays of a shard. room: float64 words of a report.
    """

    def __init__(self, group: Group, by_rank: tuple[tuple[int, ...], ...], types: Types, room: int) -> None:
        self._group, self._layout = group, MessageLayout(types, room)
        self._tree, self._subtrees = _order(by_rank)
        self._sums: dict[Node, Sum] = {}
        size, words = group.size, self._layout.length - room
        parts = 1 if size <= 2 or words < size else size
        ends = [room + words * part // parts for part in range(parts + 1)]
        self._adds_all, self._parts = parts == 1, [*itertools.pairwise(ends)] * (size // parts)
        """For each rank, the words of a message that it adds: the first, and one past the last."""

    def add(self, shard: int, arrays: list[np.ndarray]) -> None:
        """Add a shard's arrays, of any types of floating-point numbers, which nothing may change until `exchange`."""
        self._tree.insert(self._sums, (0, shard), Sum(arrays), self._added)

    def _added(self, left: Sum, right: Sum) -> Sum:
        """The sum of two, in the memory of one of them."""
        total = left if left.memory is not NOTHING else right if right.memory is not NOTHING else self._layout.new()
        with np.errstate(invalid="ignore", over="ignore"):
            for one, other, result in zip(left.arrays, right.arrays, total.arrays, strict=True):
                np.add(one, other, result, dtype=result.dtype, casting="same_kind")
        return total

    def exchange(self, report: np.ndarray) -> np.ndarray:
        """Send this rank's sums to those that add them; returns the reports of all ranks. A collective.

        report: what this rank says about its shards, float64 (room,). Returns float64 (ranks, room).
        """
        rank, room, (first, end) = self._group.rank, len(report), self._parts[self._group.rank]
        own, self._sums = [self._message(node) for node in self._subtrees[rank]], {}
        sent = [[report, *(message[low:high] for message in own)] for low, high in self._parts]
        if self._adds_all and len(own) == 1:  # without a copy
            own[0][:room] = report
            sent = [own] * len(sent)
        sent[rank] = []
        vectors = [*itertools.chain.from_iterable(sent)]
        vector = vectors[0] if len(vectors) == 1 else np.concatenate([NOTHING, *vectors])
        lengths = [(room + len(nodes) * (end - first)) * (other != rank) for other, nodes in enumerate(self._subtrees)]
        received = self._group.exchange("shards", vector, [sum(map(len, each)) for each in sent], lengths)
        reports, start = np.empty((len(lengths), room)), 0
        for other, nodes in enumerate(self._subtrees):
            if other == rank:
                reports[other], parts = report, [message[first:end] for message in own]
            else:
                message, start = received[start : start + lengths[other]], start + lengths[other]
                reports[other], parts = message[:room], [*message[room:].reshape(len(nodes), end - first)]
            for node, words in zip(nodes, parts, strict=True):
                self._tree.insert(self._sums, node, Sum(self._layout.elements(words, first), words), self._added)
        return reports

    def _message(self, node: Node) -> np.ndarray:
        """This rank's sum of a node as a message; any values if a shard is missing, as all ranks then read and stop."""
        known = self._sums.get(node, Sum([]))
        if known.memory is not NOTHING:
            return known.memory
        copy = self._layout.new()
        for array, values in zip(copy.arrays, known.arrays, strict=False):
            np.copyto(array, values, casting="same_kind")
        return copy.memory

    def total(self) -> list[np.ndarray]:
        """The sum over all shards, with NaN in one pattern; valid if each shard was computed once. A collective."""
        ((_, words),) = self._sums.values()
        if not self._adds_all:
            lengths = [end - first for first, end in self._parts]
            words = self._group.exchange("sums", np.tile(words, len(lengths)), [len(words)] * len(lengths), lengths)
        for elements in self._layout.elements(words, self._layout.room):
            if elements.size and np.isnan(elements.max()):
                elements[np.isnan(elements)] = np.nan
        return self._layout.arrays(words)
