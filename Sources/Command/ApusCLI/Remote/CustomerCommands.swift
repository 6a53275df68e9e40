import ApusContract
import ApusCore
import ArgumentParser
import SwiftProtobuf

// Integrators (IV-A1, docs/accounts.md): verbs of operators; those about keys also work with a key of the customer.

/// `apus customers`. Its verbs share its options, which it parses.
struct CustomersCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "customers", abstract: "List the integrators, and manage their keys and devices.",
        subcommands: [
            CreateCustomerCommand.self, IssueKeyCommand.self, RevokeKeyCommand.self, AssignDeviceCommand.self,
        ])
    @OptionGroup var options: OperatorOptions
    @Option(help: "List those after this one.")
    var after = ""

    func run() async throws {
        try await options.show(ClientListCustomersRequest.with { $0.pageToken = after }) { answer in
            [["CUSTOMER", "USERS", "KEYS"]]
                + answer.customers.map {
                    [$0.customer, "\($0.users)", $0.keys.isEmpty ? "-" : $0.keys.map(\.id).joined(separator: " ")]
                }
        }
    }
}

/// `apus customers create CUSTOMER`
struct CreateCustomerCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "create", abstract: "Create an integrator.")
    @ParentCommand var customers: CustomersCommand
    @Argument(help: "The customer's name.") var customer: String

    func run() async throws {
        try await customers.options.show(ClientCreateCustomerRequest.with { $0.customer = customer }) { _ in
            [["The customer \(customer) exists."]]
        }
    }
}

/// `apus customers key CUSTOMER`
struct IssueKeyCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "key", abstract: "Issue a key with which an integrator's server makes requests.",
        discussion: "It is shown once, and two are valid at a time: issue the next, use it, and revoke the first.")
    @ParentCommand var customers: CustomersCommand
    @Argument(help: "The customer's name.") var customer: String
    @Option(help: "Set the key's lifetime: 90s, 15m, 12h, 30d.")
    var ttl = "365d"

    func run() async throws {
        let seconds = try TimeToLive.seconds(ttl)
        let request = ClientIssueKeyRequest.with { ($0.customer, $0.lifetimeSeconds) = (customer, seconds) }
        try await customers.options.show(request) { [[$0.key]] }
    }
}

/// `apus customers revoke-key CUSTOMER ID`
struct RevokeKeyCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "revoke-key", abstract: "Revoke a key of an integrator, within a second.")
    @ParentCommand var customers: CustomersCommand
    @Argument(help: "The customer's name.") var customer: String
    @Argument(help: "The key's id, as `apus customers` lists it.") var id: String

    func run() async throws {
        let request = ClientRevokeKeyRequest.with { ($0.customer, $0.id) = (customer, id) }
        try await customers.options.show(request) { _ in [["The key is revoked."]] }
    }
}

/// `apus customers assign DEVICE [CUSTOMER]`
struct AssignDeviceCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "assign", abstract: "Assign a device to an integrator, whose users may then have it.")
    @ParentCommand var customers: CustomersCommand
    @Argument(help: "The device's id.") var device: String
    @Argument(help: "The customer's name; none: the device is assigned to no customer any more.") var customer: String?

    func run() async throws {
        let request = ClientAssignDeviceRequest.with { ($0.device, $0.customer) = (device, customer ?? "") }
        try await customers.options.show(request) { _ in
            [[customer.map { "\(device) is assigned to \($0)." } ?? "\(device) is assigned to no customer."]]
        }
    }
}

/// The option `--ttl` of verbs that issue tokens.
enum TimeToLive {
    static func seconds(_ text: String) throws -> Int64 {
        guard let span = AdminToken.span(text) else {
            throw ValidationError("--ttl must be a duration such as 90s, 15m, 12h or 30d, not '\(text)'")
        }
        return span.components.seconds
    }
}
