import ApusContract
import ApusCore
import ArgumentParser
import SwiftProtobuf

// Hooks of integrators (IV-D10, IV-D12, docs/events.md), with an operator's token or a customer's key.

/// `apus hooks CUSTOMER`. Its verbs share its options, which it parses.
struct HooksCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "hooks", abstract: "List the HTTP endpoints of an integrator, and what waits for them.",
        subcommands: [PutHookCommand.self, DeleteHookCommand.self])
    @OptionGroup var options: OperatorOptions
    @Option(help: "The customer. Default: -, for devices and users without a customer.")
    var customer = "-"

    func run() async throws {
        try await options.show(ClientListHooksRequest.with { $0.customer = customer }) { answer in
            [["HOOK", "EVENTS", "MESSAGES", "WAITING", "DROPPED", "URL", "FAILURE"]]
                + answer.hooks.map { hook in
                    [
                        hook.hook, hook.events.isEmpty ? "-" : hook.events.joined(separator: ","),
                        hook.messages ? "yes" : "no", "\(hook.waiting)", "\(hook.dropped)", hook.url,
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
