import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusLocal
import ApusMedia
import ArgumentParser
import Foundation
import Logging
import SwiftProtobuf

// Answering machines, and the messages that they take (docs/answering-machine.md).

/// `apus messages`
struct MessagesCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "messages", abstract: "Use answering machines, and the messages that they have taken.",
        subcommands: [
            MachineCommand.self, ListMessagesCommand.self, SaveMessageCommand.self, MarkMessageCommand.self,
            DeleteMessageCommand.self,
        ])
}

/// Whose answering machine it is.
struct MessageOptions: ParsableArguments {
    @OptionGroup var operators: OperatorOptions
    @Option(help: "The account.") var account = LocalCluster.account.rawValue
    @Option(help: "Use the machine of this device.") var device = ""
}

/// `apus messages machine`
struct MachineCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "machine", abstract: "Show an answering machine, or turn it on or off.")
    @OptionGroup var options: MessageOptions
    @Flag(help: "Answer calls that nobody accepts.") var on = false
    @Flag(help: "Answer no calls.") var off = false
    @Option(help: "Answer this number of seconds after the start of a call. Default: when nobody has accepted in time.")
    var after: UInt32 = 0
    @Option(help: "The longest message in seconds, 1 to 120.") var length: UInt32 = 30
    @Option(help: "Keep messages for this number of days, 1 to 365.") var keep: UInt32 = 30
    @Option(help: "Greet callers with this file, of at most 30 seconds and 1.5 MiB.") var greeting: String?
    @Flag(help: "Greet callers with nothing.") var noGreeting = false

    func validate() throws {
        guard !(on && off) else { throw ValidationError("Use one of --on and --off.") }
        guard greeting == nil || !noGreeting else { throw ValidationError("Use one of --greeting and --no-greeting.") }
    }

    func run() async throws {
        let api = try await options.operators.api()
        var frames: [MediaFrame]? = noGreeting ? [] : nil
        if let greeting {
            let source = FileSource(path: greeting, loops: false, isPaced: false, log: Logger(label: "apus"))
            frames = try await source.allFrames(byteCountMax: 1536 << 10)
        }
        for piece in frames.map({ Greeting.pieces(of: $0) }) ?? [] {
            var request = piece
            (request.device, request.account) = (options.device, options.account)
            _ = try await api.ask(request)
        }
        if on || off {
            _ = try await api.ask(
                ClientSetAnsweringMachineRequest.with {
                    ($0.device, $0.account, $0.enabled) = (options.device, options.account, on)
                    ($0.afterSeconds, $0.lengthSeconds, $0.keepDays) = (after, length, keep)
                })
        }
        let request = ClientGetAnsweringMachineRequest.with {
            ($0.device, $0.account) = (options.device, options.account)
        }
        try await options.operators.show(request) { machine in
            [
                ["STATE", "AFTER", "LONGEST MESSAGE", "KEPT", "GREETING"],
                [
                    machine.enabled ? "on" : "off", machine.afterSeconds == 0 ? "-" : "\(machine.afterSeconds) s",
                    "\(machine.lengthSeconds) s", "\(machine.keepDays) days",
                    machine.greetingMs == 0 ? "-" : "\(machine.greetingMs / 1000) s",
                ],
            ]
        }
    }
}

/// `apus messages list`
struct ListMessagesCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "list", abstract: "List messages, the newest first.")
    @OptionGroup var options: MessageOptions
    @Option(help: "List at most this many.") var limit: UInt32 = 50

    func run() async throws {
        let request = ClientListMessagesRequest.with {
            ($0.device, $0.account, $0.pageSize) = (options.device, options.account, limit)
        }
        try await options.operators.show(request) { answer in
            [["MESSAGE", "FROM", "BEGAN", "SECONDS", "BYTES", "STATE"]]
                + answer.messages.map { message in
                    [
                        message.message, message.caller.name, TimeText.of(milliseconds: message.startedMs),
                        "\(message.lengthMs / 1000)", "\(message.bytes)", message.watched ? "watched" : "new",
                    ]
                }
        }
    }
}

/// `apus messages save MESSAGE FILE`
struct SaveMessageCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "save", abstract: "Save a message as an MP4 file.")
    @OptionGroup var operators: OperatorOptions
    @Argument(help: "The message.") var message: String
    @Argument(help: "The file.") var file: String

    private struct Report: Encodable {
        var message: String
        var bytes: Int
    }

    func run() async throws {
        let api = try await operators.api()
        var (bytes, index) = (Data(), UInt32(0))
        while true {
            let piece = try await api.ask(ClientReadMessageRequest.with { ($0.message, $0.index) = (message, index) })
            bytes += piece.data
            index += 1
            guard !piece.data.isEmpty, bytes.count < piece.bytes else { break }
        }
        do {
            try bytes.write(to: URL(fileURLWithPath: file))
        } catch {
            throw ApusError(.storageFailed, "\(file) cannot be written: \(error.localizedDescription)")
        }
        try operators.output.show(
            Report(message: message, bytes: bytes.count), ["\(file) has \(bytes.count) bytes."])
    }
}

/// `apus messages mark MESSAGE`
struct MarkMessageCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "mark", abstract: "Mark a message as watched.")
    @OptionGroup var operators: OperatorOptions
    @Argument(help: "The message.") var message: String
    @Flag(help: "Mark it as new.") var new = false

    func run() async throws {
        let request = ClientMarkMessageRequest.with { ($0.message, $0.watched) = (message, !new) }
        try await operators.show(request) { _ in [["The message is marked."]] }
    }
}

/// `apus messages delete MESSAGE`
struct DeleteMessageCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "delete", abstract: "Delete a message.")
    @OptionGroup var operators: OperatorOptions
    @Argument(help: "The message.") var message: String

    func run() async throws {
        let request = ClientDeleteMessageRequest.with { $0.message = message }
        try await operators.show(request) { _ in [["The message is deleted."]] }
    }
}
