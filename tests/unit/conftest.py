"""What all unit tests need: a fresh `hvd_dynamic.init` each, and quick, repeatable hypothesis runs."""
import hypothesis
import pytest

hypothesis.settings.register_profile(
    'unit', max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture])
hypothesis.settings.load_profile('unit')


@pytest.fixture(autouse=True)
def fresh_world(monkeypatch):
    """No test sees the world that another one made, nor that of a job it happens to run in."""
    from hvd_dynamic import elastic
    monkeypatch.setattr(elastic, '_world', None)
    for name in ('HOROVOD_RANK', 'HOROVOD_GLOO_RENDEZVOUS_ADDR', 'HOROVOD_ELASTIC', 'HOROVOD_HOSTNAME',
                 'HOROVOD_LOCAL_RANK'):
        monkeypatch.delenv(name, raising=False)
