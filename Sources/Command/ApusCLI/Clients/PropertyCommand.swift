import ApusClient
import ApusContract
import ApusCore
import ApusSessions
import ArgumentParser

/// `apus property`: a device's thing model (IV-D1 to IV-D10, docs/things.md).
struct PropertyCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "property", abstract: "Read, write and watch the model of a device.",
        subcommands: [
            PropertyGet.self, PropertySet.self, PropertyAdd.self, PropertyDelete.self, PropertyWatch.self,
            PropertyReport.self, PropertyLocalAccess.self,
        ])
}

/// What the verbs about properties take.
struct PropertyOptions: ParsableArguments {
    @Argument(help: "The device's id.") var device: String
    @OptionGroup var session: SessionOptions

    var output: OutputOptions { session.output }
    var connection: ConnectOptions { session.connection }

    /// Runs the work with a session of an app, or of the device itself; as ``SessionOptions/run(as:seconds:_:)``.
    func run(
        as role: Session.Role = .app, seconds: Double? = nil,
        _ work: @escaping @Sendable (ClientSession, DeviceID) async throws(ApusError) -> Void
    ) async throws {
        let device: DeviceID = try .argument(device, "the device")
        try await session.run(as: role == .device ? device : nil, seconds: seconds) { session throws(ApusError) in
            try await work(session, device)
        }
    }
}

/// `apus property get DEVICE [PATH]`
struct PropertyGet: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "get", abstract: "Read a part of the model, also while the device is offline.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The path, such as ProReadonly._online. Default: the whole model.") var path = ""
    @Option(help: "Ask the device if its value is older than this number of seconds; 0: in any case.")
    var maxAge: Double?

    private struct Report: Encodable {
        var path: String
        var json: JSONText
        var version: UInt64
        var pending: Bool
        var confirmedMs: Int64?
    }

    func validate() throws {
        guard (0...4_000_000).contains(maxAge ?? 0) else { throw ValidationError("--max-age must be 0 to 4000000") }
    }

    func run() async throws {
        let maxAge = maxAge.map { Duration.milliseconds(Int64($0 * 1000)) }
        try await options.run { [output = options.output, path] session, device throws(ApusError) in
            let found = try await session.readProperty(of: device, path: path, maxAge: maxAge)
            try output.show(
                Report(
                    path: found.path, json: JSONText(found.json), version: found.version, pending: found.isPending,
                    confirmedMs: found.confirmedMs),
                [found.json])
        }
    }
}

/// `apus property set DEVICE PATH JSON`
struct PropertySet: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "set", abstract: "Write a setting of the device, or a user property.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The path, such as ProWritable._logLevel or ProUser.room.val.") var path: String
    @Argument(help: #"The JSON: {"setVal":VALUE} for a leaf, VALUE for a path behind it."#) var json: String
    @Option(help: "Write only if the leaf has this version.") var ifVersion: UInt64?
    @Option(help: "Write over the network that both are in, with the access in this file, and without the cluster.")
    var local: String?

    private struct Report: Encodable {
        var path: String
        var pending: Bool
    }

    func validate() throws {
        guard local == nil || ifVersion == nil else {
            throw ValidationError("The device knows no versions: --local and --if-version exclude each other.")
        }
    }

    func run() async throws {
        if let local {
            return try await PropertyLocalAccess.write(
                path, json, to: try .argument(options.device, "the device"), with: local, options.output)
        }
        try await options.run { [output = options.output, path, json, ifVersion] session, device throws(ApusError) in
            let isPending = try await session.writeProperty(of: device, path: path, json: json, ifVersion: ifVersion)
            try output.show(
                Report(path: path, pending: isPending),
                [isPending ? "Written. The device has not applied it yet." : "Written."])
        }
    }
}

/// `apus property add DEVICE NAME JSON`
struct PropertyAdd: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "add", abstract: "Add the user property ProUser.NAME, or replace it.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The name, which does not begin with _.") var name: String
    @Argument(help: "Any JSON.") var json: String

    func run() async throws {
        try await options.run { [output = options.output, name, json] session, device throws(ApusError) in
            try await session.addUserProperty(name, json: json, to: device)
            try output.show(["path": "ProUser.\(name)"], ["Added ProUser.\(name)."])
        }
    }
}

/// `apus property delete DEVICE NAME`
struct PropertyDelete: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "delete", abstract: "Delete the user property ProUser.NAME.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The name.") var name: String

    func run() async throws {
        try await options.run { [output = options.output, name] session, device throws(ApusError) in
            try await session.deleteUserProperty(name, of: device)
            try output.show(["path": "ProUser.\(name)"], ["Deleted ProUser.\(name)."])
        }
    }
}

/// `apus property watch DEVICE`
struct PropertyWatch: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "watch", abstract: "Print the changes of the model, one a line.")
    @OptionGroup var options: PropertyOptions
    @Option(help: "Stop after this number of seconds.") var seconds: Double?

    private struct Change: Encodable {
        var path: String
        var json: JSONText
        var version: UInt64
        var pending: Bool
    }

    func run() async throws {
        try await options.run(seconds: seconds) { [output = options.output] session, device throws(ApusError) in
            do {
                for try await event in session.propertyChanges(of: device) {
                    let change = event.message
                    try output.show(
                        Change(
                            path: change.path, json: JSONText(change.json), version: change.version,
                            pending: change.pending),
                        ["\(change.path) \(change.json.isEmpty ? "deleted" : change.json)"])
                }
            } catch {
                throw error as? ApusError ?? ApusError(.internalFailure, "\(error)")
            }
        }
    }
}

/// `apus property report DEVICE PATH JSON`
struct PropertyReport: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "report", abstract: "Report a state, a setting or an action as the device itself.",
        discussion: "Signs in as the device, and takes the place of a device that is connected.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The path, such as ProReadonly.battery.") var path: String
    @Argument(help: #"The JSON, such as {"stVal":80}."#) var json: String
    @Option(help: "The newest version of the setting that the device has received.") var received: UInt64?

    func run() async throws {
        try await options.run(as: .device) {
            [output = options.output, path, json, received] session, _ throws(ApusError) in
            try await session.reportProperty(path: path, json: json, receivedVersion: received)
            try output.show(["path": path], ["Reported \(path)."])
        }
    }
}
