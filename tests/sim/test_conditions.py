from gaploop.core.station import SIM_STATION
from gaploop.sim.conditions import GRID_COLUMNS, GRID_ROWS, NAMES


def test_the_station_offers_what_the_cell_can_set_up() -> None:
    """core can't import sim, so plans are checked against names kept twice: these are equal."""
    assert dict(SIM_STATION.conditions) == {k: tuple(v) for k, v in NAMES.items()}
    assert SIM_STATION.grid == (GRID_ROWS, GRID_COLUMNS)
