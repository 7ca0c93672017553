"""Plays the calculator on our server: python sdk_client.py ors|openreward URL. Prints what it saw as JSON."""

import asyncio
import json
import sys


async def with_ors(url):
    from ors.client._types import ToolCallError
    from ors.client.environment import AsyncEnvironmentsAPI

    environments = AsyncEnvironmentsAPI(url)  # closes its connections once nobody holds it
    environment = environments.get("calculator")
    task = (await environment.list_tasks("train"))[0]
    return await play(
        environment, task, ToolCallError, finish=lambda session, text: session.call_tool("answer", {"message": text})
    )


async def with_openreward(url):
    from openreward.api.environments.client import AsyncEnvironmentsAPI, ToolCallError

    environments = AsyncEnvironmentsAPI(url, api_key="")
    environment = environments.get("calculator", variant="calculator")
    task = (await environment.list_tasks("train"))[0]
    seen = await play(environment, task, ToolCallError, finish=lambda session, text: session.call_terminal_tool(text))
    await environments.aclose()
    return seen


async def play(environment, task, refused, finish):
    seen = {"splits": await environment.list_splits(), "count": await environment.num_tasks("train")}
    async with environment.session(task) as session:
        seen["tools"] = [tool.name for tool in await session.list_tools()]
        prompt = (await session.get_prompt())[0].text
        seen["prompt"] = prompt
        try:
            await session.call_tool("calculate", {"expression": "1 / 0"})
        except refused as error:
            seen["refused"] = str(error)
        output = await session.call_tool("calculate", {"expression": prompt.partition("is ")[2].partition("?")[0]})
        seen["reward before"] = output.reward
        output = await finish(session, output.blocks[0].text)
        seen["reward"], seen["finished"] = output.reward, output.finished
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run({"ors": with_ors, "openreward": with_openreward}[sys.argv[1]](sys.argv[2]))))
