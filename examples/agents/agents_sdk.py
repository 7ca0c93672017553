"""The agent of sums.py with OpenAI's Agents SDK."""

from agents import Agent, AgentsException, FunctionTool, OpenAIChatCompletionsModel, RunConfig, Runner

from examples.agents.sums import MAX_TURNS, TOOL, calculate, question, reward


async def on_invoke_tool(context, arguments):
    return calculate(arguments)


FUNCTION = TOOL["function"]
CALCULATE = FunctionTool(
    name=FUNCTION["name"],
    description=FUNCTION["description"],
    params_json_schema=FUNCTION["parameters"],
    on_invoke_tool=on_invoke_tool,
    strict_json_schema=False,
)
NO_TRACES = RunConfig(tracing_disabled=True)  # they would go to OpenAI


async def run(task, client):
    agent = Agent("sums", tools=[CALCULATE], model=OpenAIChatCompletionsModel("policy", client))
    try:
        result = await Runner.run(agent, question(task), max_turns=MAX_TURNS, run_config=NO_TRACES)
    except AgentsException:  # what the model did ends the run: too many turns, or a tool that there is not
        return 0.0
    return reward(task, result.final_output)
