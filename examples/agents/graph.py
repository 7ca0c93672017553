"""The agent of sums.py with LangGraph."""

import json

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

from examples.agents.sums import MAX_TURNS, TOOL, calculate, question, reward


async def run(task, client):
    model = ChatOpenAI(model="policy", base_url=str(client.base_url), api_key=client.api_key).bind_tools([TOOL])

    async def ask(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def use_tools(state):
        calls = state["messages"][-1].tool_calls
        results = [(call["id"], calculate(json.dumps(call["args"]))) for call in calls]
        return {"messages": [{"role": "tool", "tool_call_id": name, "content": text} for name, text in results]}

    def what_next(state):
        turns = sum(message.type == "ai" for message in state["messages"])
        return "use_tools" if state["messages"][-1].tool_calls and turns < MAX_TURNS else END

    graph = StateGraph(MessagesState).add_node(ask).add_node(use_tools)
    graph.add_edge(START, "ask").add_conditional_edges("ask", what_next).add_edge("use_tools", "ask")
    state = await graph.compile().ainvoke({"messages": [{"role": "user", "content": question(task)}]})
    return reward(task, state["messages"][-1].content)
