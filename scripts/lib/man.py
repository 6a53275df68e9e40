"""Makes a man page (man(7)) of the help of a program of swift-argument-parser.

    apus --experimental-dump-help | man.py > apus.1

Every verb has a section, in the order of the help, with its options.
"""

import json
import sys


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n"))


def form(argument):
    """How an argument is written."""
    value = argument.get("valueName", "")
    if argument["kind"] == "positional":
        return f"\\fI{escaped(value)}\\fR"
    names = ", ".join(
        "\\fB" + escaped(("-" if name["kind"] == "short" else "--") + name["name"]) + "\\fR"
        for name in argument["names"]
    )
    return names if argument["kind"] == "flag" else f"{names} \\fI{escaped(value)}\\fR"


def shown(argument):
    names = [name["name"] for name in argument.get("names", [])]
    return argument.get("shouldDisplay", True) and "help" not in names


def write_options(command, out):
    for argument in filter(shown, command.get("arguments", [])):
        out.append(".TP")
        out.append(form(argument))
        text = argument.get("abstract", "")
        if argument.get("allValues"):
            text += " One of: " + ", ".join(argument["allValues"]) + "."
        if argument.get("defaultValue"):
            text += f" Default: {argument['defaultValue']}."
        out.append(escaped(text.strip()))


def write(command, path, out):
    name = " ".join(path)
    out.append(f".SS {escaped(name)}")
    out.append(escaped(command.get("abstract", "")))
    if command.get("discussion"):
        out.append(".PP")
        out.append(escaped(command["discussion"]))
    write_options(command, out)
    for part in command.get("subcommands", []):
        if part.get("shouldDisplay", True) and part["commandName"] != "help":
            write(part, path + [part["commandName"]], out)


def main():
    root = json.load(sys.stdin)["command"]
    name = root["commandName"]
    out = [
        f'.TH {name.upper()} 1 "" "{name}"',
        ".SH NAME",
        f"{name} \\- {escaped(root['abstract'])}",
        ".SH SYNOPSIS",
        f"\\fB{name}\\fR [\\fIoptions\\fR] \\fIverb\\fR [\\fIarguments\\fR]",
        ".SH OPTIONS",
    ]
    write_options(root, out)
    out.append(".SH VERBS")
    for part in root.get("subcommands", []):
        if part.get("shouldDisplay", True) and part["commandName"] != "help":
            write(part, [part["commandName"]], out)
    out += [
        ".SH EXIT STATUS",
        "0 on success, 1 for an error, which is one line on standard error with its number, and 64 for arguments "
        "that are not valid. With \\fB\\-\\-json\\fR the error is one JSON object, the last line on standard error: "
        '{"error": {"message", "name", "number"}}.',
    ]
    print("\n".join(out))


main()
