"""Constants that were fitted on one language model, each with what it was measured on."""

#: Rare words are so many times more common in other texts than in the one at hand: of a hundred words, a model writes
#: 1.4, 1.2 and 1.3 of three classes of them, Wikipedia has 3.3, 1.8 and 1.8, and a manual 1.7 and 2.9 of the last two.
#: Of a hundred words that are drawn by frequency, 6, 4 and 6 are such.
RARE_ELSEWHERE = 1.75
#: What queries of lower rank lose on other texts, beside what other layers lose there: of SmolLM2-135M, all queries of
#: rank 144 cost 0.058 nats on text of its own, 0.053 on Wikipedia, 0.058 on a manual; narrower feed-forward layers cost
#: 1.5 to 2 times as much there as on its own text.
QUERIES_ELSEWHERE = 0.6
#: Where the published recipe of Fold-AR folds LLaMA, in fractions of its depth: of 32 blocks the first 11 and the last
#: 2 stay.
FOLD_AR_START, FOLD_AR_STOP = 11 / 32, 30 / 32
