"""What is cached of a method does not keep its object alive."""

import gc
from weakref import ref

from raycase.search.pooled import cached_method


class Doubles:
    def __init__(self):
        self.asked = []
        self.double = cached_method(self._double, 2)

    def _double(self, number):
        self.asked.append(number)
        return 2 * number


def test_values_are_remembered_and_the_object_goes_at_once():
    one = Doubles()
    assert [one.double(number) for number in (1, 1, 2, 3, 1)] == [2, 2, 4, 6, 2]
    assert one.asked == [1, 2, 3, 1]
    gone = ref(one)
    gc.disable()
    try:
        del one
        assert gone() is None
    finally:
        gc.enable()
