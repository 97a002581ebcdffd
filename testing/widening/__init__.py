"""Widening, the inverse of folding: an equal network in which every foldable channel exists several times.

Written directly on the ModelProto with numpy. Of the library it uses only what it says about where the units of each
group lie; how weights are copied and split, and where the copies go, is decided here, independent of the library's
merge. The numbers of a graph that count or name channels are rewritten in one of two ways: by what is known here of
each operator (:mod:`testing.widening.operators`), or by what the rules declare (:mod:`testing.widening.declarations`),
which checks that the declarations suffice.
"""
