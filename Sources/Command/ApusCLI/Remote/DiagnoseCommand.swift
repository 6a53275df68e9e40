import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import SwiftProtobuf

/// `apus diagnose DEVICE`: why its picture is black (IV-G9, docs/diagnosis.md).
struct DiagnoseCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "diagnose", abstract: "Name the stage that keeps the pictures of a device from an app.",
        discussion: """
            The stages stand in the order in which a picture passes them. The cluster judges the device, its stream, \
            and the last report of an app that plays it.
            """)
    @OptionGroup var options: OperatorOptions
    @Argument(help: "The device's id.") var device: String
    @Option(help: "Set the source's number on a device with several cameras.") var source: UInt16 = 0
    @Option(help: "Judge the report of this play session, by its 32 digits. Default: the newest.") var session = ""

    func run() async throws {
        let id: DeviceID = try .argument(device, "the device")
        let request = ClientDiagnoseRequest.with {
            ($0.device, $0.source, $0.session) = (id.rawValue, UInt32(source), session)
        }
        let answer = try await options.api().ask(request)
        try options.output.show(answer, Self.lines(answer))
    }

    /// The answer for people. Pure.
    static func lines(_ answer: ClientDiagnosis) -> [String] {
        let head =
            answer.guilty.isEmpty ? "No stage is guilty. \(answer.text)" : "Guilty: \(answer.guilty). \(answer.text)"
        let rows = answer.stages.map { [$0.name, "\($0.state)", number($0), $0.text] }
        return [head] + TextTable.lines([["STAGE", "STATE", "NUMBER", "WHAT"]] + rows) + play(answer)
    }

    private static func number(_ stage: ClientDiagnosisStage) -> String {
        guard !stage.unit.isEmpty else { return "-" }
        return "\(Int64(stage.number.rounded())) \(stage.unit)"
    }

    private static func play(_ answer: ClientDiagnosis) -> [String] {
        guard answer.hasPlay else { return ["No app has reported a stream of this source."] }
        let others = answer.sessions.filter { $0 != answer.play.session }
        let line = "Play session \(answer.play.session), reported \(answer.reportedMs) ms ago."
        return [line] + (others.isEmpty ? [] : ["Other sessions: \(others.joined(separator: ", "))"])
    }
}
