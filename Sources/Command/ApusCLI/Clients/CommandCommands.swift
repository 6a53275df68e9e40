import ApusClient
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

// `apus action`, `apus send` and `apus commands`: commands to a device (IV-D5, IV-D11, IV-D15, docs/commands.md).

/// What the verbs that send a command take.
struct SendOptions: ParsableArguments {
    @Option(help: "Stop waiting after this number of seconds.") var timeout: Double = 10
    @Option(
        help: """
            Keep the command for this number of seconds for a device that is offline or asleep, and do not wait for \
            the device.
            """)
    var ttl: Int?
    @Option(help: "Set the command's id: 32 hexadecimal digits. Sending an id again has no further effect.")
    var id: String?

    func validate() throws {
        guard timeout > 0, timeout <= 60, ttl ?? 1 > 0 else {
            throw ValidationError("--timeout is 60 s at most, and --ttl positive.")
        }
    }

    func send(
        _ content: ClientSession.CommandContent, to device: DeviceID, expectResponse: Bool, _ session: ClientSession,
        _ output: OutputOptions
    ) async throws(ApusError) {
        let command = try await session.sendCommand(
            content, to: device, id: id, expectResponse: expectResponse, keptFor: ttl.map { .seconds($0) },
            until: ttl == nil ? nil : .queued, timeout: .milliseconds(Int64(timeout * 1000)))
        let answer = command.json.isEmpty ? String(decoding: command.data, as: UTF8.self) : command.json
        try output.show(
            CommandReport(command),
            [answer.isEmpty || command.status != .answered ? "\(command.status): \(command.id)" : answer])
    }
}

/// A command as `--json` has it.
private struct CommandReport: Encodable {
    var id: String
    var path: String
    var status: String
    var code: Int32?
    var message: String?
    var json: JSONText?
    var data: String?

    init(_ command: ClientSession.Command) {
        (id, path, status) = (command.id, command.path, "\(command.status)")
        (code, message) = (command.error?.code.number, command.error?.message)
        json = command.json.isEmpty ? nil : JSONText(command.json)
        data = command.data.isEmpty ? nil : Data(command.data).base64EncodedString()
    }
}

/// `apus action DEVICE PATH JSON`
struct ActionCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "action", abstract: "Ask a device for an action, and print its answer.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The path, such as Action.cameraOn.") var path: String
    @Argument(help: #"The JSON: {"ctlVal":VALUE}, or VALUE for a path that ends with .ctlVal."#) var json: String
    @OptionGroup var sending: SendOptions

    func run() async throws {
        try await options.run { [output = options.output, path, json, sending] session, device throws(ApusError) in
            try await sending.send(
                .action(path: path, json: json), to: device, expectResponse: true, session, output)
        }
    }
}

/// `apus send DEVICE`
struct SendCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "send", abstract: "Send a device raw data, at most 30,000 bytes, and print its answer.")
    @OptionGroup var options: PropertyOptions
    @Option(help: "Send this text.") var text: String?
    @Option(help: "Send this file.") var file: String?
    @Flag(help: "Wait for the device's acknowledgement only.") var noAnswer = false
    @OptionGroup var sending: SendOptions

    func validate() throws {
        guard (text == nil) != (file == nil) else { throw ValidationError("Use --text or --file.") }
    }

    func run() async throws {
        var data = Array((text ?? "").utf8)
        if let file {
            guard let content = FileManager.default.contents(atPath: file) else {
                throw ApusError(.storageFailed, "\(file) cannot be read")
            }
            data = Array(content)
        }
        try await options.run { [output = options.output, data, noAnswer, sending] session, device throws(ApusError) in
            try await sending.send(.data(data), to: device, expectResponse: !noAnswer, session, output)
        }
    }
}

/// `apus commands`
struct CommandsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "commands", abstract: "Show and change the commands that wait for a device.",
        subcommands: [CommandsList.self, CommandsCancel.self, CommandsOrder.self])
}

/// `apus commands list DEVICE`
struct CommandsList: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "list", abstract: "List the open commands of a device, and the newest that have ended.")
    @OptionGroup var options: PropertyOptions

    private struct Report: Encodable {
        var order: String
        var commands: [CommandReport]
    }

    func run() async throws {
        try await options.run { [output = options.output] session, device throws(ApusError) in
            let (commands, order) = try await session.commands(of: device)
            let rows = commands.map { command in
                [
                    command.id, "\(command.status)", command.path.isEmpty ? "data" : command.path,
                    command.error.map { "\($0)" } ?? "",
                ]
            }
            let table = TextTable.lines([["ID", "STATUS", "PATH", "REASON"]] + rows)
            try output.show(
                Report(order: "\(order)", commands: commands.map { CommandReport($0) }),
                rows.isEmpty ? ["No commands."] : table)
        }
    }
}

/// `apus commands cancel DEVICE ID`
struct CommandsCancel: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cancel", abstract: "End a command that was not sent yet.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The command's id.") var id: String

    func run() async throws {
        try await options.run { [output = options.output, id] session, device throws(ApusError) in
            try await session.cancelCommand(id, of: device)
            try output.show(["id": id], ["Cancelled \(id)."])
        }
    }
}

/// `apus commands order DEVICE ORDER`
struct CommandsOrder: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "order", abstract: "Set when the next command of a device is sent.")

    enum Order: String, CaseIterable, ExpressibleByArgument {
        case allAtOnce = "all-at-once"
        case afterAcknowledgement = "after-acknowledgement"
        case afterAnswer = "after-answer"

        var value: ClientSession.CommandOrder {
            switch self {
            case .allAtOnce: .allAtOnce
            case .afterAcknowledgement: .afterAcknowledgement
            case .afterAnswer: .afterAnswer
            }
        }
    }

    @OptionGroup var options: PropertyOptions
    @Argument(help: "all-at-once, after-acknowledgement (of the one before) or after-answer.") var order: Order

    func run() async throws {
        try await options.run { [output = options.output, order] session, device throws(ApusError) in
            try await session.setCommandOrder(order.value, of: device)
            try output.show(["order": order.rawValue], ["Commands of \(device) are sent \(order.rawValue)."])
        }
    }
}
