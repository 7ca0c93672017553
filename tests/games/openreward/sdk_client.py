"""Plays the calculator on our server: python sdk_client.py ors|openreward URL. Prints what it saw as JSON."""

import asyncio
import json
import sys


async def main(sdk, url):
    if sdk == "ors":
        from ors.client._types import ToolCallError
        from ors.client.environment import AsyncEnvironmentsAPI

        environments = AsyncEnvironmentsAPI(url)  # closes its connections once nobody holds it
        environment = environments.get("calculator")
    else:
        from openreward.api.environments.client import AsyncEnvironmentsAPI, ToolCallError

        environments = AsyncEnvironmentsAPI(url, api_key="")
        environment = environments.get("calculator", variant="calculator")
    task = (await environment.list_tasks("train"))[0]
    seen = {"splits": await environment.list_splits(), "count": await environment.num_tasks("train")}
    async with environment.session(task) as session:
        seen["tools"] = [tool.name for tool in await session.list_tools()]
        seen["prompt"] = prompt = (await session.get_prompt())[0].text
        try:
            await session.call_tool("calculate", {"expression": "1 / 0"})
        except ToolCallError as error:
            seen["refused"] = str(error)
        output = await session.call_tool("calculate", {"expression": prompt.partition("is ")[2].partition("?")[0]})
        seen["reward before"], text = output.reward, output.blocks[0].text
        if sdk == "ors":
            output = await session.call_tool("answer", {"message": text})
        else:
            output = await session.call_terminal_tool(text)
        seen["reward"], seen["finished"] = output.reward, output.finished
    if sdk == "openreward":
        await environments.aclose()
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
