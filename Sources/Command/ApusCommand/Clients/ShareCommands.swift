import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import SwiftProtobuf

// Which accounts may use a device (IV-B8, IV-B10, docs/sharing.md).

/// A change of the accounts of a device, as `--json` has it.
private struct ShareReport: Encodable {
    var device: String
    var account: String?
    var control: Bool?
}

/// `apus share DEVICE ACCOUNT`
struct ShareCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "share", abstract: "Let another account use a device.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The other account.") var account: String
    @Flag(help: "Let it also change settings and send commands. Without this it may watch and read.")
    var control = false

    func run() async throws {
        let account: AccountID = try .argument(account, "the account")
        try await options.run { [output = options.output, control] session, device throws(ApusError) in
            try await session.share(device, with: account, control: control)
            try output.show(
                ShareReport(device: device.rawValue, account: account.rawValue, control: control),
                ["\(device) is shared with \(account)."])
        }
    }
}

/// `apus unshare DEVICE ACCOUNT`
struct UnshareCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "unshare", abstract: "End the use of a device by another account, within a second.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The other account, or the own one of a guest.") var account: String

    func run() async throws {
        let account: AccountID = try .argument(account, "the account")
        try await options.run { [output = options.output] session, device throws(ApusError) in
            try await session.unshare(device, with: account)
            try output.show(
                ShareReport(device: device.rawValue, account: account.rawValue),
                ["\(device) is not shared with \(account)."])
        }
    }
}

/// `apus shares DEVICE`
struct SharesCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "shares", abstract: "List the other accounts that may use a device.")
    @OptionGroup var options: PropertyOptions

    func run() async throws {
        try await options.run { [output = options.output] session, device throws(ApusError) in
            let shares = try await session.shares(of: device)
            try output.show(
                shares.map {
                    ShareReport(device: device.rawValue, account: $0.account.rawValue, control: $0.control)
                },
                TextTable.lines(
                    [["ACCOUNT", "MAY"]] + shares.map { [$0.account.rawValue, $0.control ? "control" : "view"] }))
        }
    }
}

/// `apus unbind DEVICE`
struct UnbindCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "unbind", abstract: "Unbind a device from its account. The device then needs a new token.")
    @OptionGroup var options: PropertyOptions

    func run() async throws {
        try await options.run { [output = options.output] session, device throws(ApusError) in
            try await session.unbind(device)
            try output.show(ShareReport(device: device.rawValue), ["\(device) is unbound."])
        }
    }
}

/// `apus transfer DEVICE ACCOUNT`
struct TransferCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "transfer", abstract: "Give a device to another account. The device then needs a new token.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The account that receives the device.") var account: String

    func run() async throws {
        let account: AccountID = try .argument(account, "the account")
        try await options.run { [output = options.output] session, device throws(ApusError) in
            try await session.transfer(device, to: account)
            try output.show(
                ShareReport(device: device.rawValue, account: account.rawValue), ["\(device) belongs to \(account)."])
        }
    }
}

/// `apus bind DEVICE`
struct BindCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "bind", abstract: "Bind a device to an account, as an operator.")
    @OptionGroup var options: OperatorOptions
    @Argument(help: "The device's id.") var device: String
    @Option(help: "The account.") var account = LocalCluster.account.rawValue

    func run() async throws {
        let request = ClientBindDeviceRequest.with { ($0.device, $0.account) = (device, account) }
        try await options.show(request) { _ in [["\(device) is bound to \(account)."]] }
    }
}
