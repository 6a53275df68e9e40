import ApusContract
import ApusCore
import ArgumentParser
import SwiftProtobuf

// Users of integrators (IV-A1 to IV-A3, docs/accounts.md), with an operator's token or a customer's key.

/// `apus users`. Its verbs share its options, which it parses.
struct UsersCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "users", abstract: "List the users of an integrator, and give them access.",
        subcommands: [
            RegisterUserCommand.self, UserTokenCommand.self, RevokeUserCommand.self, GrantCommand.self,
            EndGrantCommand.self, DeviceTokenCommand.self,
        ])
    @OptionGroup var options: OperatorOptions
    @Option(help: "The customer, of the list and of `register`.")
    var customer: String?
    @Option(help: "List those after this one.")
    var after = ""

    /// The customer that was given.
    var named: String {
        get throws {
            guard let customer else { throw ValidationError("--customer is missing") }
            return customer
        }
    }

    func run() async throws {
        let named = try named
        let request = ClientListUsersRequest.with { ($0.customer, $0.pageToken) = (named, after) }
        try await options.show(request) { answer in
            [["USER", "CUSTOMER", "REGISTERED"]] + answer.users.map { [$0.user, $0.customer, "\($0.registered)"] }
        }
    }
}

/// `apus users register EXTERNAL-ID`
struct RegisterUserCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "register", abstract: "Register a user, or find it again, and print its access id.")
    @ParentCommand var users: UsersCommand
    @Argument(help: "What the customer's own accounts call the user.") var externalID: String

    func run() async throws {
        let customer = try users.named
        let request = ClientRegisterUserRequest.with { ($0.externalID, $0.customer) = (externalID, customer) }
        try await users.options.show(request) { [[$0.user]] }
    }
}

/// `apus users token USER`
struct UserTokenCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "token", abstract: "Issue a token with which an app of a user signs in.")
    @ParentCommand var users: UsersCommand
    @Argument(help: "The user's access id.") var user: String
    @Option(help: "The user's phone, if it has several apps: their sessions do not end each other.")
    var client = ""
    @Option(help: "Set the token's lifetime: 90s, 15m, 12h, 30d.")
    var ttl = "1h"

    func run() async throws {
        let seconds = try TimeToLive.seconds(ttl)
        let request = ClientAuthorizeUserRequest.with {
            ($0.user, $0.client, $0.lifetimeSeconds) = (user, client, seconds)
        }
        try await users.options.show(request) { [[$0.token]] }
    }
}

/// `apus users revoke USER`
struct RevokeUserCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "revoke", abstract: "Revoke all tokens of a user that were issued until now.")
    @ParentCommand var users: UsersCommand
    @Argument(help: "The user's access id.") var user: String

    func run() async throws {
        try await users.options.show(ClientRevokeUserRequest.with { $0.user = user }) { _ in
            [["The tokens of \(user) are revoked."]]
        }
    }
}

/// `apus users grant USER DEVICE...`
struct GrantCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "grant", abstract: "Give temporary access to devices of a user, and print the token.")
    @ParentCommand var users: UsersCommand
    @Argument(help: "The user's access id.") var user: String
    @Argument(help: "The devices.") var devices: [String]
    @Option(help: "Set the token's lifetime: 90s, 15m, 12h, 30d.")
    var ttl = "1h"
    @Flag(help: "One client can sign in with the token, once.")
    var once = false

    func run() async throws {
        let seconds = try TimeToLive.seconds(ttl)
        let request = ClientGrantAccessRequest.with {
            ($0.user, $0.devices, $0.lifetimeSeconds, $0.once) = (user, devices, seconds, once)
        }
        try await users.options.show(request) { [[$0.token]] }
    }
}

/// `apus users end-grant USER ACCESS`
struct EndGrantCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "end-grant", abstract: "End temporary access, within a second.")
    @ParentCommand var users: UsersCommand
    @Argument(help: "The user's access id.") var user: String
    @Argument(help: "The access id of the grant, as `grant --json` prints it.") var access: String

    func run() async throws {
        try await users.options.show(ClientRevokeAccessRequest.with { ($0.user, $0.access) = (user, access) }) { _ in
            [["The access has ended."]]
        }
    }
}

/// `apus users device-token DEVICE`
struct DeviceTokenCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "device-token",
        abstract: "Issue a token with which a device signs in to the account that it is bound to.")
    @ParentCommand var users: UsersCommand
    @Argument(help: "The device's id.") var device: String
    @Option(help: "Set the token's lifetime: 90s, 15m, 12h, 30d.")
    var ttl = "365d"

    func run() async throws {
        let seconds = try TimeToLive.seconds(ttl)
        let request = ClientAuthorizeDeviceRequest.with { ($0.device, $0.lifetimeSeconds) = (device, seconds) }
        try await users.options.show(request) { [[$0.token]] }
    }
}
