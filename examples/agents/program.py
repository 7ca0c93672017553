"""The agent of sums.py as a program that knows nothing of slim_rl."""

import json
import math
import os
import re
import sys
from urllib.request import ProxyHandler, Request, build_opener

URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
HEADERS = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
EXPRESSION = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
FUNCTION = {"name": "calculate", "description": "Calculates.", "parameters": EXPRESSION}
OPENER = build_opener(ProxyHandler({}))  # the door is on this machine


def calculate(expression):
    """The value of sums, differences and products of whole numbers."""
    products = re.findall(r"([+-]?)([^+-]+)", expression)
    return sum((-1 if sign == "-" else 1) * math.prod(map(int, product.split("*"))) for sign, product in products)


def ask(messages):
    body = {"model": "policy", "messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}
    with OPENER.open(Request(URL, json.dumps(body).encode(), HEADERS)) as response:
        return json.load(response)["choices"][0]["message"]


task = json.load(sys.stdin)
messages = [{"role": "user", "content": f"What is {task['sum']}? Answer with the number alone."}]
for _ in range(4):
    message = ask(messages)
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        try:
            result = str(calculate(json.loads(call["function"]["arguments"])["expression"]))
        except (KeyError, TypeError, ValueError) as error:
            result = f"Error: {error}"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
print(json.dumps({"reward": float(message["content"] == str(calculate(task["sum"])))}))
