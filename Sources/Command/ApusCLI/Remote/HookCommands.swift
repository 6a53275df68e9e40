import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import SwiftProtobuf

// Hooks of integrators (IV-D10, IV-D12, docs/events.md), with an operator's token or a customer's key.

/// `apus hooks CUSTOMER`. Its verbs share its options, which it parses.
struct HooksCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "hooks", abstract: "List the HTTP endpoints of an integrator, and what waits for them.",
        subcommands: [PutHookCommand.self, DeleteHookCommand.self, FailedEventsCommand.self])
    @OptionGroup var options: OperatorOptions
    @Option(help: "The customer. Default: -, for devices and users without a customer.")
    var customer = "-"

    func run() async throws {
        try await options.show(ClientListHooksRequest.with { $0.customer = customer }) { answer in
            [["HOOK", "EVENTS", "MESSAGES", "WAITING", "FAILED", "DROPPED", "URL", "FAILURE"]]
                + answer.hooks.map { hook in
                    [
                        hook.hook, hook.events.isEmpty ? "-" : hook.events.joined(separator: ","),
                        hook.messages ? "yes" : "no", "\(hook.waiting)", "\(hook.failed)", "\(hook.dropped)", hook.url,
                        hook.failure.isEmpty ? "-" : hook.failure,
                    ]
                }
        }
    }
}

/// `apus hooks put HOOK URL`
struct PutHookCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "put", abstract: "Set an endpoint, and print the secret of its signatures if it is new.")
    @ParentCommand var hooks: HooksCommand
    @Argument(help: "The name of the hook.") var hook: String
    @Argument(help: "http://… or https://…") var url: String
    @Option(help: "Send it these events: alarm, share, system, property, call. Repeatable.") var event: [String] = []
    @Flag(help: "Pass it raw data of apps and devices.") var messages = false
    @Flag(help: "Make a new secret. Requests are signed with the old one, too, for a day.") var newSecret = false

    func run() async throws {
        let request = ClientPutHookRequest.with {
            ($0.customer, $0.hook, $0.url, $0.events) = (hooks.customer, hook, url, event)
            ($0.messages, $0.newSecret) = (messages, newSecret)
        }
        try await hooks.options.show(request) { [[$0.secret.isEmpty ? "The hook \(hook) is set." : $0.secret]] }
    }
}

/// `apus hooks delete HOOK`
struct DeleteHookCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "delete", abstract: "Delete an endpoint, and the events that wait for it.")
    @ParentCommand var hooks: HooksCommand
    @Argument(help: "The name of the hook.") var hook: String

    func run() async throws {
        let request = ClientDeleteHookRequest.with { ($0.customer, $0.hook) = (hooks.customer, hook) }
        try await hooks.options.show(request) { _ in [["The hook \(hook) is deleted."]] }
    }
}

/// `apus hooks failed`. Its verbs are about events that an endpoint has refused.
struct FailedEventsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "failed", abstract: "List, retry or drop events that an endpoint has refused.",
        subcommands: [ListFailedEventsCommand.self, RetryFailedEventsCommand.self, DropFailedEventsCommand.self])
}

/// `apus hooks failed list HOOK`
struct ListFailedEventsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "list", abstract: "List the events that were put aside, the oldest first.")
    @ParentCommand var hooks: HooksCommand
    @Argument(help: "The name of the hook.") var hook: String
    @Option(help: "List so many at most.") var limit: Int = 100

    func run() async throws {
        guard (1...100).contains(limit) else { throw ValidationError("--limit is 1 to 100") }
        let request = ClientListFailedEventsRequest.with {
            ($0.customer, $0.hook, $0.pageSize) = (hooks.customer, hook, UInt32(limit))
        }
        let answer = try await hooks.options.api().ask(request)
        let rows = answer.events.map { event in
            [
                event.id, TimeText.of(milliseconds: event.failedMs), event.topic, event.name, event.device,
                event.account, event.reason,
            ].map { $0.isEmpty ? "-" : $0 }
        }
        try hooks.options.output.show(
            FailedEventsReport(answer),
            TextTable.lines([["ID", "FAILED", "TOPIC", "NAME", "DEVICE", "ACCOUNT", "REASON"]] + rows))
    }
}

/// The events that were put aside, with `--json`: as the API has them, but the JSON of an event is a part of the
/// object.
struct FailedEventsReport: Encodable {
    struct Event: Encodable {
        var id: String
        var topic: String
        var name: String
        var device: String?
        var account: String?
        var timeMs: Int64
        var failedMs: Int64
        var reason: String
        var json: JSONText
    }

    var events: [Event]
    /// Nil: these are the last.
    var nextPageToken: String?

    init(_ answer: ClientListFailedEventsResponse) {
        events = answer.events.map { event in
            Event(
                id: event.id, topic: event.topic, name: event.name,
                device: event.device.isEmpty ? nil : event.device, account: event.account.isEmpty ? nil : event.account,
                timeMs: event.timeMs, failedMs: event.failedMs, reason: event.reason, json: JSONText(event.json))
        }
        nextPageToken = answer.nextPageToken.isEmpty ? nil : answer.nextPageToken
    }
}

/// `apus hooks failed retry HOOK [ID…]`
struct RetryFailedEventsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "retry", abstract: "Send the endpoint events again that it has refused.")
    @ParentCommand var hooks: HooksCommand
    @Argument(help: "The name of the hook.") var hook: String
    @Argument(help: "The ids of the events. Default: all.") var ids: [String] = []

    func run() async throws {
        let request = ClientRetryFailedEventsRequest.with {
            ($0.customer, $0.hook, $0.ids) = (hooks.customer, hook, ids)
        }
        try await hooks.options.show(request) { [["Events that wait again: \($0.count)."]] }
    }
}

/// `apus hooks failed drop HOOK ID…`
struct DropFailedEventsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "drop", abstract: "Drop events that the endpoint has refused.")
    @ParentCommand var hooks: HooksCommand
    @Argument(help: "The name of the hook.") var hook: String
    @Argument(help: "The ids of the events.") var ids: [String] = []
    @Flag(help: "Drop all events that were put aside.") var all = false

    func run() async throws {
        guard all != !ids.isEmpty else { throw ValidationError("name the events, or use --all") }
        let request = ClientDropFailedEventsRequest.with {
            ($0.customer, $0.hook, $0.ids) = (hooks.customer, hook, ids)
        }
        try await hooks.options.show(request) { [["Events that were dropped: \($0.count)."]] }
    }
}
