"""Plug-ins for programs that filter and process corpora: one module per program, which imports that program.

| module | program | what it has |
|---|---|---|
| `ncelm.integrations.batches` | Hugging Face `datasets` | functions for `map` and `filter` |
| `ncelm.integrations.ray` | Ray Data | `add_perplexity`, `filter_perplexity` |
| `ncelm.integrations.datatrove` | datatrove | a filter and a statistics step |
| `ncelm.integrations.data_juicer` | Data-Juicer | the operator `ncelm_perplexity_filter` |
| `ncelm.integrations.nemo_curator` | NeMo Curator | a `DocumentFilter` |

All of them score documents with `ncelm.integrations.documents`: each line of a document that is not blank is a
sentence. Models are runs (n-gram models, neural models, mixtures) or ARPA files.
"""
