"""Text in observations: the numbers of its words.

Encoders of agents embed the words (`agents.encoders`). Numbers are the same in every process.
"""

import zlib

import numpy as np
from dm_env import specs
from jaxtyping import Int32

NUM_TOKENS = 1000


class TextSpec(specs.BoundedArray):
    """A text of a number of words at most: for each its number, then zeros."""

    def __init__(self, most_words: int, name: str):
        super().__init__((most_words,), np.int32, 0, NUM_TOKENS, name=name)

    def __reduce__(self):
        return TextSpec, (self.shape[0], self.name)

    def tokens(self, text: str) -> Int32[np.ndarray, "N"]:
        """Return the numbers of a text's words, and zeros for as many as are missing.

        Words are separated by blanks and hashed into 1000 buckets, as in IMPALA (Espeholt et al.
        2018). Bucket 0 is number 1, since 0 stands for no word. Further words are left out.
        """
        words = text.split()[: self.shape[0]]
        numbers = [1 + zlib.crc32(word.encode()) % NUM_TOKENS for word in words]
        return np.array(numbers + [0] * (self.shape[0] - len(numbers)), np.int32)
