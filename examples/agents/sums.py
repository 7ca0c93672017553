"""Sums, with a calculator that the model may call: an agent with the package `openai` alone."""

import json

from slim_rl.games.calculator.arithmetic import evaluate, written

TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Calculates.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
MAX_TURNS = 4


def question(task):
    return f"What is {task['sum']}? Answer with the number alone."


def calculate(arguments):
    try:
        return written(evaluate(json.loads(arguments)["expression"]))
    except (KeyError, TypeError, ValueError) as error:
        return f"Error: {error}"


def reward(task, answer):
    return float(answer == written(evaluate(task["sum"])))


async def run(task, client):  # client: openai.AsyncOpenAI
    messages = [{"role": "user", "content": question(task)}]
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = calculate(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return reward(task, message.content)
