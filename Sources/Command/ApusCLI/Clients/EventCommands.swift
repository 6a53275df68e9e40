import ApusClient
import ApusContract
import ApusCore
import ApusSessions
import ArgumentParser
import Foundation
import SwiftProtobuf

// Events of devices and accounts, and raw data to servers (IV-D10, IV-D12, docs/events.md).

/// `apus events`
struct EventsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "events", abstract: "Watch the events of an account, and report or send events.",
        subcommands: [EventsWatch.self, EventsReport.self, EventsNotify.self])
}

/// `apus events watch`
struct EventsWatch: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "watch", abstract: "Print the events of an account, one a line.")
    @OptionGroup var options: SessionOptions
    @Option(help: "Watch this account.") var of = "local"
    @Option(help: "Stop after this number of seconds.") var seconds: Double?

    private struct Report: Encodable {
        var topic: String
        var name: String
        var device: String
        var json: JSONText
        /// Unix milliseconds.
        var time: Int64

        init(_ event: ClientAccountEvent) {
            topic =
                switch event.topic {
                case .alarm: "alarm"
                case .share: "share"
                case .system, .unspecified, .UNRECOGNIZED: "system"
                }
            (name, json, device, time) = (event.name, JSONText(event.json), event.device, event.timeMs)
        }
    }

    func run() async throws {
        let account: AccountID = try .argument(of, "--of")
        try await options.run(seconds: seconds) { [output = options.output] session throws(ApusError) in
            do {
                for try await event in session.accountEvents(of: account) {
                    let report = Report(event.message)
                    let device = report.device.isEmpty ? "-" : report.device
                    try output.show(
                        report,
                        [
                            "\(TimeText.of(milliseconds: report.time)) \(report.topic) \(report.name) \(device) "
                                + report.json.text
                        ])
                }
            } catch {
                throw error as? ApusError ?? ApusError(.internalFailure, "\(error)")
            }
        }
    }
}

/// `apus events report DEVICE NAME [JSON]`
struct EventsReport: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "report", abstract: "Report an event as the device itself.",
        discussion: "Signs in as the device, and takes the place of a device that is connected.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The name, such as motion.") var name: String
    @Argument(help: "JSON of at most 4 KiB.") var json = ""

    func run() async throws {
        try await options.run(as: .device) { [output = options.output, name, json] session, _ throws(ApusError) in
            try await session.reportEvent(name, json: json)
            try output.show(["event": name], ["Reported \(name)."])
        }
    }
}

/// `apus events notify ACCOUNT NAME [JSON]`
struct EventsNotify: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "notify", abstract: "Send an account a notice, as an operator.")
    @OptionGroup var options: OperatorOptions
    @Argument(help: "The account.") var account: String
    @Argument(help: "The name, such as maintenance.") var name: String
    @Argument(help: "JSON of at most 4 KiB.") var json = ""

    func run() async throws {
        let request = ClientNotifyAccountRequest.with { ($0.account, $0.name, $0.json) = (account, name, json) }
        try await options.show(request) { _ in [["Sent."]] }
    }
}

/// `apus send-server URL`
struct SendServerCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "send-server", abstract: "Send raw data to a server of the integrator, and print its answer.")
    @OptionGroup var options: SessionOptions
    @Argument(help: "The name of the server, and a path after a slash: orders/42.") var url: String
    @Option(help: "Send this text.") var text = ""
    @Option(help: "Stop waiting after this number of seconds.") var timeout: Double = 10

    func validate() throws {
        guard timeout > 0, timeout <= 60 else { throw ValidationError("--timeout is 60 s at most.") }
    }

    func run() async throws {
        try await options.run { [output = options.output, url, text, timeout] session throws(ApusError) in
            let answer = try await session.sendData(
                Data(text.utf8), toServer: url, timeout: .milliseconds(Int64(timeout * 1000)))
            try output.show(
                ["data": answer.base64EncodedString()], [String(decoding: answer, as: UTF8.self)])
        }
    }
}
