"""`ncelm serve`: models as an HTTP service, with an interactive page. Needs the extra `serve` (Starlette, uvicorn).

- `fields`: what a request may contain, its validation, and its OpenAPI description.
- `batches`: requests that wait at the same time are computed together, in a thread of their own.
- `service`: the models, and what each endpoint computes.
- `completions`: the endpoint of OpenAI's interface.
- `metrics`: counters for Prometheus.
- `app`: routes, limits, errors, access log.
- `server`: starts and stops uvicorn.
- `page/`: the page: HTML, CSS and JavaScript without a build step; uPlot (MIT licence) draws its charts.
"""
