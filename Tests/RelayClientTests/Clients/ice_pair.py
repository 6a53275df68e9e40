"""Two ICE agents that learn of each other through this process.

    ice_pair.py A... -- B...

The words on either side of the -- are a command that runs an agent, such as one in a network namespace. Prints
one line of JSON: what each saw.
"""

import json
import subprocess
import sys
import time


def line(agent, name):
    text = agent.stdout.readline()
    if not text:
        raise SystemExit(f"agent {name} ended without a word")
    return text


middle = sys.argv.index("--")
commands = {"a": sys.argv[1:middle], "b": sys.argv[middle + 1 :]}
agents = {
    name: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for name, command in commands.items()
}
try:
    descriptions = {name: line(agent, name) for name, agent in agents.items()}
    # The controlling agent takes the first pair that answers it, and where a NAT dropped its first check it asks
    # again only after 500 ms: so the other begins, and has opened its NAT when the first check comes.
    for name, other in (("b", "a"), ("a", "b")):
        if "error" in json.loads(descriptions[name]):
            raise SystemExit(f"agent {name}: {descriptions[name]}")
        agents[name].stdin.write(descriptions[other])
        agents[name].stdin.flush()
        time.sleep(0.2)
    seen = {name: json.loads(line(agent, name)) for name, agent in agents.items()}
    seen["candidates"] = {name: json.loads(text)["candidates"] for name, text in descriptions.items()}
    print(json.dumps(seen))
finally:
    for agent in agents.values():
        agent.stdin.close()
        try:
            agent.wait(3)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
