"""What the output of a failed step of the set-up means, and what the user can do about it."""

import re

DISK_FULL = (r'No space left on device|Disk quota exceeded',
             'The disk is full: make room (about 2 GB are needed) and call again.')
# What a step's output may hold, and what that means; the first that fits counts.
FAILURES = (
    DISK_FULL,
    (r'SSLError|CERTIFICATE_VERIFY_FAILED',
     'The package index cannot be reached, its certificate is not trusted: set PIP_CERT to the file of your '
     'certificates.'),
    (r'HTTP error (?:401|403|407)|(?:401|403|407) Client Error',
     "The package index refused the request: mend the name and password in pip's settings "
     '(pip config list).'),
    (r'connection broken|NewConnectionError|Max retries|ProxyError|ConnectionError|ConnectTimeout|'
     r'ReadTimeout|name resolution|Could not fetch URL|IncompleteRead|ProtocolError',
     "The package index cannot be reached: check the network, the proxy and pip's settings (pip config list; "
     'PIP_INDEX_URL), and call again.'),
    (r'No matching distribution found for (\S+)',
     'The package index has no {} for this Python and machine: check which index pip is set to use '
     '(pip config list; PIP_INDEX_URL, PIP_NO_INDEX).'),
    (r'ResolutionImpossible|conflicting dependencies',
     "The versions in constraints.txt conflict with a constraint in pip's settings: take that away "
     '(pip config list; PIP_CONSTRAINT).'),
    (r'(?s:.*)^((?:ERROR: |\w*Error: ).*)$', 'The step "{step}" failed ({}): mend that and call again.'),
)
COMPILE_FAILURES = (
    DISK_FULL,
    (r'Killed signal|cc1plus.*Killed|virtual memory exhausted',
     'Horovod did not compile for want of memory (about 2 GB a core): give more and call again.'),
    # pip's own word for any failed command, which comes first, says nothing.
    (r'^(?!.*subprocess-exited-with-error)(.*(?:fatal error:|error:|CMake Error).*)$',
     'Horovod did not compile ({}): mend that and call again.'),
    (r'', 'Horovod did not compile: mend what its output tells and call again.'),
)


def explain(output, what):
    """Return the line that tells the user why a step failed.

    Parameters
    ----------
    output : str
        What the step printed.
    what : str
        The step, in words.
    """
    failures = COMPILE_FAILURES if 'Building wheel for horovod' in output else FAILURES
    for pattern, meaning in failures:
        found = re.search(pattern, output, re.M)
        if found:
            return meaning.format(*[text.strip()[:200] for text in found.groups()], step=what)
    return 'The step "{}" failed: mend what its output tells and call again.'.format(what)
