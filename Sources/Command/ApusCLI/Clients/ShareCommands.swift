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
    var invited: Bool?
}

/// `apus share DEVICE ACCOUNT`
struct ShareCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "share", abstract: "Invite another account to use a device, or change what it may do.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The other account.") var account: String
    @Flag(help: "Let it also change settings and send commands. Without this it may watch and read.")
    var control = false

    func run() async throws {
        let account: AccountID = try .argument(account, "the account")
        try await options.run { [output = options.output, control] session, device throws(ApusError) in
            let isInvited = try await session.share(device, with: account, control: control)
            try output.show(
                ShareReport(
                    device: device.rawValue, account: account.rawValue, control: control, invited: isInvited),
                [
                    isInvited
                        ? "\(account) is invited to use \(device), and has to accept."
                        : "\(device) is shared with \(account)."
                ])
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
                    ShareReport(
                        device: device.rawValue, account: $0.account.rawValue, control: $0.control,
                        invited: $0.isInvited)
                },
                TextTable.lines(
                    [["ACCOUNT", "MAY", "INVITED"]]
                        + shares.map {
                            [$0.account.rawValue, $0.control ? "control" : "view", $0.isInvited ? "yes" : ""]
                        }))
        }
    }
}

/// `apus accept DEVICE`
struct AcceptCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "accept", abstract: "Accept the invitation to use a device of another account.")
    @OptionGroup var options: PropertyOptions

    func run() async throws {
        try await options.run { [output = options.output] session, device throws(ApusError) in
            try await session.acceptShare(of: device)
            try output.show(ShareReport(device: device.rawValue), ["\(device) can be used."])
        }
    }
}

/// `apus invitations`
struct InvitationsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "invitations", abstract: "List the devices of other accounts that the account is invited to use.")
    @OptionGroup var options: SessionOptions

    func run() async throws {
        try await options.run { [output = options.output] session throws(ApusError) in
            let found = try await session.invitations()
            try output.show(
                found.map {
                    ShareReport(
                        device: $0.device.rawValue, account: $0.account.rawValue, control: $0.control, invited: true)
                },
                TextTable.lines(
                    [["DEVICE", "OF", "MAY"]]
                        + found.map {
                            [$0.device.rawValue, $0.account.rawValue, $0.control ? "control" : "view"]
                        }))
        }
    }
}

/// `apus unbind DEVICE`
struct UnbindCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "unbind", abstract: "Unbind a device from its account. The device then needs a new token.")
    @OptionGroup var options: PropertyOptions
    @Flag(help: "Keep the device's settings, notes, events and recordings for its next account.") var keepData = false

    func run() async throws {
        try await options.run { [output = options.output, keepData] session, device throws(ApusError) in
            try await session.unbind(device, keepingData: keepData)
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
    @Flag(help: "Hand over the device's settings, notes, events and recordings, as within a household.")
    var keepData = false

    func run() async throws {
        let account: AccountID = try .argument(account, "the account")
        try await options.run { [output = options.output, keepData] session, device throws(ApusError) in
            try await session.transfer(device, to: account, keepingData: keepData)
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
