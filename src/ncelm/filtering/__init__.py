"""Filter documents by the probability that a language model gives them: `ncelm.filter_documents`, `ncelm filter`.

`blocks` reads files in blocks of lines, `scoring` scores the documents of a block in a worker process, `state` is the
file from which an interrupted call is resumed, `run` puts blocks, workers and output together, `page` shows the result.
"""
