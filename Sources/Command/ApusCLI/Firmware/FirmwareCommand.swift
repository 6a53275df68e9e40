import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import SwiftProtobuf

// Firmware of devices (IV-E1, docs/firmware.md): verbs of operators, and of customers with their keys.

/// `apus firmware`. Its verbs share its options, which it parses.
struct FirmwareCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "firmware", abstract: "Sign, upload and roll out firmware of devices.",
        subcommands: [
            FirmwareKeygenCommand.self, FirmwareSignCommand.self, FirmwareAddCommand.self, FirmwareUploadCommand.self,
            FirmwareRollOutCommand.self, FirmwarePauseCommand.self, FirmwareStopCommand.self, FirmwareListCommand.self,
            FirmwareShowCommand.self, FirmwareOutcomesCommand.self, FirmwareDeleteCommand.self,
            FirmwareGroupCommand.self, FirmwareQueryCommand.self,
        ])
    @OptionGroup var options: OperatorOptions
    @Option(help: "Set the customer whose firmware it is; - for a cluster without customers.")
    var customer = CustomerID.none

    func run() async throws { try await list("", after: "") }

    /// Shows the versions and groups of a product, or of all.
    func list(_ product: String, after: String) async throws {
        let request = ClientListFirmwareRequest.with {
            ($0.customer, $0.product, $0.pageToken) = (customer, product, after)
        }
        try await options.show(request) { answer in
            var table = [["PRODUCT", "VERSION", "STATE", "SHARE", "GROUPS", "INSTALLED", "FAILED", "BYTES", "FROM"]]
            table += answer.firmware.map { one in
                [
                    one.product, one.version, one.sealed ? one.state.word : "\(one.state.word), not sealed",
                    "\(one.percentage)%", one.groups.isEmpty ? "-" : one.groups.joined(separator: " "),
                    "\(one.installed)", "\(one.failed)", "\(one.size)", one.from.isEmpty ? "-" : one.from,
                ]
            }
            if !answer.groups.isEmpty {
                table.append(["PRODUCT", "GROUP", "DEVICES"])
                table += answer.groups.map { [$0.product, $0.group, "\($0.count)"] }
            }
            return table
        }
    }

    /// Shows a version.
    func show(_ one: ClientFirmware) throws {
        try options.output.show(one, TextTable.lines(Self.table(one)))
    }

    static func table(_ one: ClientFirmware) -> [[String]] {
        var rows = [
            ["product", one.product], ["version", one.version], ["size", "\(one.size)"], ["sha256", one.sha256],
            ["from", one.from.isEmpty ? "any version" : one.from], ["sealed", one.sealed ? "yes" : "no"],
            ["state", one.state.word], ["revision", "\(one.revision)"], ["share", "\(one.percentage)%"],
            ["groups", one.groups.isEmpty ? "all devices" : one.groups.joined(separator: " ")],
            [
                "stops",
                one.stopFailures == 0
                    ? "never" : "at \(one.stopFailures) failures, over \(one.stopFailurePercent)% of outcomes",
            ],
            ["installed", "\(one.installed)"], ["failed", "\(one.failed)"],
        ]
        if !one.url.isEmpty { rows.append(["url", one.url]) }
        return rows + one.descriptions.map { [$0.language, $0.text] }
    }
}

/// The product and the version that a verb is for.
struct FirmwareArguments: ParsableArguments {
    @Argument(help: "The product's name.") var product: String
    @Argument(help: "The version, such as 1.5.0.") var version: String
}

/// `apus firmware list [PRODUCT]`
struct FirmwareListCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "list", abstract: "List the versions and groups of a product, or of all.")
    @ParentCommand var firmware: FirmwareCommand
    @Argument(help: "The product's name; none: all.") var product: String?
    @Option(help: "List the products after this one.") var after = ""

    func run() async throws { try await firmware.list(product ?? "", after: after) }
}

/// `apus firmware show PRODUCT VERSION`
struct FirmwareShowCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "show", abstract: "Show a version with its rule, its outcomes and its descriptions.")
    @ParentCommand var firmware: FirmwareCommand
    @OptionGroup var version: FirmwareArguments

    func run() async throws {
        let request = ClientGetFirmwareRequest.with {
            ($0.customer, $0.product, $0.version) = (firmware.customer, version.product, version.version)
        }
        try await firmware.options.show(request) { FirmwareCommand.table($0) }
    }
}

/// `apus firmware outcomes PRODUCT VERSION`
struct FirmwareOutcomesCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "outcomes", abstract: "List the devices that have installed a version, or have failed to.")
    @ParentCommand var firmware: FirmwareCommand
    @OptionGroup var version: FirmwareArguments
    @Flag(help: "List only the devices whose last attempt has failed.") var failed = false
    @Option(help: "List the devices after this one.") var after = ""

    func run() async throws {
        let request = ClientListFirmwareOutcomesRequest.with {
            ($0.customer, $0.product, $0.version) = (firmware.customer, version.product, version.version)
            ($0.failed, $0.pageSize, $0.pageToken) = (failed, 500, after)
        }
        try await firmware.options.show(request) { answer in
            var table = [["DEVICE", "OUTCOME", "REASON"]]
            table += answer.outcomes.map { one in
                [one.device, one.outcome == .failed ? "failed" : "installed", one.reason.isEmpty ? "-" : one.reason]
            }
            if !answer.nextPageToken.isEmpty { table.append(["", "more:", "--after \(answer.nextPageToken)"]) }
            return table
        }
    }
}

/// `apus firmware roll-out PRODUCT VERSION`
struct FirmwareRollOutCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "roll-out", abstract: "Offer a version to devices.",
        discussion: "What is not given is as for a new version: all devices, in no group, and it does not stop.")
    @ParentCommand var firmware: FirmwareCommand
    @OptionGroup var version: FirmwareArguments
    @Option(help: "Offer it to this share of the devices, 0 to 100.") var percentage: UInt32 = 100
    @Option(help: "Offer it only to devices of this group. Repeatable.") var group: [String] = []
    @Option(help: "Stop when this number of devices has failed; 0: never.") var stopFailures: UInt32 = 0
    @Option(help: "Stop only if the failures are more than this share of the outcomes, 0 to 100.")
    var stopPercent: UInt32 = 0
    @Option(help: "Change it only if it has this revision.") var ifRevision: UInt64 = 0

    func run() async throws {
        let request = ClientRollOutFirmwareRequest.with {
            ($0.customer, $0.product, $0.version) = (firmware.customer, version.product, version.version)
            ($0.state, $0.percentage, $0.groups) = (.active, percentage, group)
            ($0.stopFailures, $0.stopFailurePercent, $0.ifRevision) = (stopFailures, stopPercent, ifRevision)
        }
        try await firmware.options.show(request) { FirmwareCommand.table($0) }
    }
}

/// `apus firmware pause PRODUCT VERSION`
struct FirmwarePauseCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "pause", abstract: "Offer a version to no further device. Devices that load it go on.")
    @ParentCommand var firmware: FirmwareCommand
    @OptionGroup var version: FirmwareArguments

    func run() async throws { try await firmware.set(.paused, version) }
}

/// `apus firmware stop PRODUCT VERSION`
struct FirmwareStopCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "stop", abstract: "Offer a version to no device, and let none load it.")
    @ParentCommand var firmware: FirmwareCommand
    @OptionGroup var version: FirmwareArguments

    func run() async throws { try await firmware.set(.stopped, version) }
}

extension FirmwareCommand {
    /// Sets the state of a version, and leaves the rest of its rule.
    fileprivate func set(_ state: ClientRollOutState, _ version: FirmwareArguments) async throws {
        let api = try await options.api()
        let known = try await api.ask(
            ClientGetFirmwareRequest.with {
                ($0.customer, $0.product, $0.version) = (customer, version.product, version.version)
            })
        let answer = try await api.ask(
            ClientRollOutFirmwareRequest.with {
                ($0.customer, $0.product, $0.version) = (customer, version.product, version.version)
                ($0.state, $0.percentage, $0.groups) = (state, known.percentage, known.groups)
                ($0.stopFailures, $0.stopFailurePercent) = (known.stopFailures, known.stopFailurePercent)
                $0.ifRevision = known.revision
            })
        try show(answer)
    }
}

/// `apus firmware delete PRODUCT VERSION`
struct FirmwareDeleteCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "delete", abstract: "Delete a version with its image and its outcomes.")
    @ParentCommand var firmware: FirmwareCommand
    @OptionGroup var version: FirmwareArguments

    func run() async throws {
        let request = ClientDeleteFirmwareRequest.with {
            ($0.customer, $0.product, $0.version) = (firmware.customer, version.product, version.version)
        }
        try await firmware.options.show(request) { _ in
            [["\(version.product) \(version.version) is deleted."]]
        }
    }
}

/// `apus firmware group PRODUCT GROUP [DEVICE…]`
struct FirmwareGroupCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "group", abstract: "Set the devices of a group, add some, or show or delete the group.")
    @ParentCommand var firmware: FirmwareCommand
    @Argument(help: "The product's name.") var product: String
    @Argument(help: "The group's name.") var group: String
    @Argument(help: "The devices; none: the group is shown.") var devices: [String] = []
    @Flag(help: "Add the devices to the group, which otherwise has these only.") var add = false
    @Flag(help: "Delete the group.") var delete = false

    func validate() throws {
        guard !delete || devices.isEmpty else { throw ValidationError("--delete takes no devices.") }
    }

    func run() async throws {
        let customer = firmware.customer
        if delete {
            let request = ClientDeleteFirmwareGroupRequest.with {
                ($0.customer, $0.product, $0.group) = (customer, product, group)
            }
            return try await firmware.options.show(request) { _ in [["The group \(group) is deleted."]] }
        }
        guard !devices.isEmpty else {
            let request = ClientGetFirmwareGroupRequest.with {
                ($0.customer, $0.product, $0.group) = (customer, product, group)
            }
            return try await firmware.options.show(request) { $0.devices.map { [$0] } }
        }
        let request = ClientSetFirmwareGroupRequest.with {
            ($0.customer, $0.product, $0.group) = (customer, product, group)
            ($0.devices, $0.add) = (devices, add)
        }
        try await firmware.options.show(request) { [["The group \(group) has \($0.count) devices."]] }
    }
}

/// `apus firmware query DEVICE`
struct FirmwareQueryCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "query", abstract: "Show the version that a device is offered, also while it is offline.")
    @ParentCommand var firmware: FirmwareCommand
    @Argument(help: "The device's id.") var device: String
    @Option(help: "Ask for this version of the device, instead of the one that it has reported.")
    var currentVersion = ""
    @Option(help: "Describe it in this language, such as de.") var language = ""

    func run() async throws {
        let request = ClientQueryFirmwareRequest.with {
            ($0.device, $0.currentVersion, $0.language) = (device, currentVersion, language)
        }
        try await firmware.options.show(request) { offer in
            guard !offer.version.isEmpty else { return [["There is no new firmware for \(device)."]] }
            return [
                ["version", offer.version], ["description", offer.upgDescs], ["size", "\(offer.size)"],
                ["sha256", offer.sha256], ["url", offer.downURL],
            ]
        }
    }
}

extension ClientRollOutState {
    /// For people.
    fileprivate var word: String {
        switch self {
        case .draft: "draft"
        case .active: "active"
        case .paused: "paused"
        case .stopped: "stopped"
        case .unspecified, .UNRECOGNIZED: "unknown"
        }
    }
}
