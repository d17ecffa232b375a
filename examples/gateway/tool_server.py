#!/usr/bin/env python3
"""A tool server as chat gateways start them: JSON-RPC 2.0, a line a message, on
stdin and stdout (the shape of MCP's stdio transport). Its tools add numbers,
tell its pid, and start a helper that it then forgets about."""

import json
import os
import subprocess
import sys

TOOLS = {
    "add": lambda a, b: a + b,
    "whoami": lambda: {"pid": os.getpid(), "calls": calls},
    "forget": lambda: subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL).pid,
}
calls = 0


def answer(request):
    global calls
    method, params = request["method"], request.get("params", {})
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "serverInfo": {"name": "example"}, "capabilities": {"tools": {}}}
    if method == "tools/list":
        return {"tools": [{"name": n} for n in TOOLS]}
    if method == "tools/call":
        calls += 1
        result = TOOLS[params["name"]](**params.get("arguments", {}))
        return {"content": [{"type": "text", "text": json.dumps(result)}]}
    raise ValueError(f"no method {method}")


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:  # a notification
        continue
    try:
        reply = {"result": answer(request)}
    except Exception as e:
        reply = {"error": {"code": -32000, "message": f"{type(e).__name__}: {e}"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
