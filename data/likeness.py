"""Whether texts are the same or nearly the same, and in which language a text is."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from ..chunking import Flags, Ints
from .split import hash_runs, number_words
from .unspaced import WORD

# Two texts are compared by their pairs of neighboring words: one changed word of a hundred changes two pairs.
PAIR = 2
SIMILARITY = 0.7  # of all pairs of two texts, the share that both have; with 9 % of the words changed it is 0.7
MIN_PAIRS = 4  # a shorter text is compared as a whole only
MAX_WORDS = 5000  # of a text that are compared
# With 16 bands of 4 hashes, MinHash finds a pair of similarity s with the probability 1 - (1 - s**4)**16: 0.988
# for 0.7, 0.64 for 0.5. Those that it finds are then compared exactly.
BANDS, HASHES, SEED = 16, 64, 7
MAX_CANDIDATES = 200
# Pairs that this share of the texts has, such as those of a prompt that all rows begin with, say nothing. Where
# fewer texts have them, these may be near copies of one.
COMMON_SHARE, MIN_COMMON = 0.05, 100
# Replies to one prompt share less than this part of what two texts must share; a reply of ten words shares more
# with its copy in which two are changed.
REPLY_SHARE = 0.5
COUNTERS = np.uint64(1 << 22)  # pairs are counted by their hash: a few share a counter

LANGUAGE_CHARS, MIN_SHARE, MIN_LETTERS = 2000, 0.5, 3
SCRIPTS = {
    "ja": "\u3040-\u30ff",
    "zh": "\u4e00-\u9fff",
    "ko": "\uac00-\ud7af",
    "th": "\u0e00-\u0e7f",
    "el": "\u0370-\u03ff",
    "he": "\u0590-\u05ff",
    "ar": "\u0600-\u06ff",
    "hi": "\u0900-\u097f",
}
SCRIPT_LETTERS = {language: re.compile(f"[{letters}]") for language, letters in SCRIPTS.items()}
# The commonest words of each language; a text is in the language with most of its words among them.
COMMON_WORDS = {
    "en": "a the of and to in is that it was for with he she you i not they are have be this on at but my what",
    "de": "der die das und ist nicht ich ein eine zu den von mit sie es dem auf sich war im für als auch wie er",
    "fr": "le la les et est des une dans que qui pas je il elle pour vous un du en ce sur se au avec ne plus",
    "es": "el la los las y es que de en un una por con no se del lo su para como más yo pero al fue era muy",
    "it": "il la che di e è un una non per sono mi con si lo gli le del della ma come più questo in anche ho",
    "pt": "o a os as e é que de em um uma não para com se do da por mais como eu ele ela mas foi ao no na",
    "nl": "de het een en is van niet ik dat in te op zijn met voor die hij ze er maar aan was ook je naar",
    "sv": "och att det som en är jag på av för med inte den han hon var till ett om men så de vi har från",
    "pl": "i w nie się na to z że jest do jak ale o co tak po za od był była ja mi go już tylko czy",
    "tr": "ve bir bu da de için ne ile ben o çok var mi daha gibi ama değil sen olarak kadar her şey",
    "ru": "и в не на что я с он как это по она но к из у за так же все от бы было мы вы его",
    "uk": "і в не на що я з він як це та у до але вона за так від ми ви його був було який й",
}
LANGUAGES = (*SCRIPTS, *COMMON_WORDS)
LANGUAGES_OF = {
    word: [language for language, words in COMMON_WORDS.items() if word in words.split()]
    for word in {word for words in COMMON_WORDS.values() for word in words.split()}
}


def exact_key(texts: Iterable[str]) -> int:
    """Equal for texts that differ in case and spaces only; of two others, once in 2**64."""
    return hash(tuple(" ".join(text.split()).casefold() for text in texts))


def find_language(text: str) -> str:
    """The language of a text by its script or its commonest words; empty where these do not tell."""
    sample = text[:LANGUAGE_CHARS].lower()
    letters = sum(map(str.isalpha, sample))
    for language, pattern in SCRIPT_LETTERS.items():
        # Japanese is written with Chinese characters too, but not without its own.
        share = 0.1 if language == "ja" else MIN_SHARE
        if letters and len(pattern.findall(sample)) > share * letters:
            return language
    votes = Counter(language for word in WORD.findall(sample) for language in LANGUAGES_OF.get(word, ()))
    (first, most), (_, second) = [*votes.most_common(2), ("", 0), ("", 0)][:2]
    return first if most >= MIN_LETTERS and most > second else ""


class Likeness:
    """Texts one after another, each compared with those before it."""

    def __init__(self, similarity: float, texts: Iterable[str]) -> None:
        """`texts` are all of them, read once for the pairs that most have, which say nothing."""
        self._similarity = similarity
        # An odd factor permutes the hashes modulo 2**64.
        self._factors: Ints = np.random.default_rng(SEED).integers(1, 2**61, (HASHES, 1), np.uint64) | np.uint64(1)
        # The first text with the same hashes in a band, and the others, which few have: a list for each would take
        # 150 MB more for 100,000 rows.
        self._first, self._others = dict[int, int](), defaultdict[int, list[int]](list)
        # Of each of these: its place, its pairs, and those of its replies.
        self._earlier = list[tuple[str, Ints, list[Ints]]]()
        self._numbers = number_words()
        counts: Ints = np.zeros(int(COUNTERS), np.int32)
        seen: set[int] = set()  # a text counts once, however often it occurs
        for text in texts:
            if (key := exact_key([text])) not in seen:
                seen.add(key)
                counts[self._pairs(text) % COUNTERS] += 1
        # In a small dataset, what nearly all texts have.
        least = min(MIN_COMMON, max(MIN_COMMON / 5, 0.9 * len(seen)))
        self._is_common: Flags = counts > max(least, COMMON_SHARE * len(seen))

    def find(self, text: str, place: str, *replies: str, keep: bool = False) -> list[str]:
        """The places of earlier texts that are nearly the same; one without any is kept, with `keep` each.

        Rows may have one long prompt: they are nearly the same only if their replies are alike, too.
        """
        pairs, replied = self._pairs(text), [self._pairs(reply) for reply in replies]
        pairs = pairs[~self._is_common[pairs % COUNTERS]]
        if len(pairs) < MIN_PAIRS:
            return []
        bands = (pairs * self._factors).min(axis=1).reshape(BANDS, -1).sum(axis=1).tolist()
        near = {self._first[band]: None for band in bands if band in self._first}
        near |= dict.fromkeys(n for band in bands for n in self._others.get(band, ())[:MAX_CANDIDATES])
        found = []
        for number in list(near)[:MAX_CANDIDATES]:
            other, its_pairs, its_replies = self._earlier[number]
            is_like = _shared(pairs, its_pairs) >= self._similarity
            both = zip(replied, its_replies, strict=False)
            if is_like and all(_shared(*each) >= REPLY_SHARE * self._similarity for each in both):
                found.append(other)
        if keep or not found:
            number = len(self._earlier)
            for band in bands:
                if self._first.setdefault(band, number) != number:
                    self._others[band].append(number)
            self._earlier.append((place, pairs, replied))
        return found

    def _pairs(self, text: str) -> Ints:
        """The pairs of neighboring words, as hashes."""
        words = WORD.findall(text.casefold())[:MAX_WORDS]
        # A single word, such as a label, is a pair with itself.
        pairs: Ints = np.unique(hash_runs(words * (2 if len(words) == 1 else 1), PAIR, self._numbers))
        return pairs


def _shared(one: Ints, other: Ints) -> float:
    """The share of all pairs of two texts that both have; 1 for two without any."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / max(len(one) + len(other) - both, 1) if len(one) or len(other) else 1.0


def join_groups(count: int, links: Iterable[tuple[int, int]]) -> Sequence[int]:
    """The group of each of so many things, of which some are linked; a group is named by one of its things."""
    groups = list(range(count))

    def find(number: int) -> int:
        while groups[number] != number:
            groups[number] = groups[groups[number]]  # halves the way for the next search
            number = groups[number]
        return number

    for one, other in links:
        groups[find(one)] = find(other)
    return [find(number) for number in range(count)]
