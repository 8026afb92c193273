"""The compiled loops of `distributed`: what rows have changed, by how much, and what all workers make of them."""

from ncelm.kernels import compiled


@compiled
def find_changed(now, former, answer):
    """Which rows are not what they were: now and former (rows, width); answer (rows,)."""
    for row in range(now.shape[0]):
        for column in range(now.shape[1]):
            if now[row, column] != former[row, column]:
                answer[row] = 1
                break


@compiled
def write_news(now, former, rows, news):
    """By how much these rows have changed: news (len(rows), width)."""
    for i in range(rows.size):
        for column in range(now.shape[1]):
            news[i, column] = now[rows[i], column] - former[rows[i], column]


@compiled
def take_news(now, former, rows, news):
    """All workers' news of these rows, added up, make them what they are now."""
    for i in range(rows.size):
        for column in range(now.shape[1]):
            value = former[rows[i], column] + news[i, column]
            former[rows[i], column] = now[rows[i], column] = value
