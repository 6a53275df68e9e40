import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusDiagnosis
import ApusSessions
import ApusStorage
import CoreMetrics
import Foundation
import SwiftProtobuf

// The requests of clients. An account that has no right to a device gets the answer for unknown devices.

extension DiagnosisService {
    private static let ownerTimeout = Duration.seconds(4)
    private static let codecByteCountMax = 16
    private static let unknown = ApusError(.targetUnknown, "no such device")

    func addRequests(to api: inout ClientAPI) {
        api.on(ClientDiagnoseRequest.self, byteCountMax: 512) { request, call throws(ApusError) in
            requests.increment()
            return try await diagnose(request, call)
        }
        api.on(ClientReportPlaysRequest.self, orderKey: { $0.plays.first?.device }) { request, call throws(ApusError) in
            guard (1...ClientReportPlaysRequest.playsMax).contains(request.plays.count) else {
                throw ApusError(
                    .badParameter, "a request has 1 to \(ClientReportPlaysRequest.playsMax) reports")
            }
            for play in request.plays { try Self.check(play) }
            for (device, plays) in Dictionary(grouping: request.plays, by: \.device).sorted(by: { $0.key < $1.key }) {
                try await keep(plays, of: try DeviceID(checking: device, "the device's id"), call)
            }
            return ClientReportPlaysResponse()
        }
    }

    // MARK: - Reports

    private func keep(_ plays: [ClientPlayReport], of device: DeviceID, _ call: ClientCall) async throws(ApusError) {
        guard let record = try await records.record(of: device), call.session.mayKnow(record) else {
            throw Self.unknown
        }
        let message = PlaysKeep.with {
            ($0.account, $0.dataSinceMs) = (call.session.account.rawValue, record.dataSince)
            $0.plays = plays.compactMap { play in (try? play.serializedBytes() as [UInt8]).map { Data($0) } }
        }
        _ = try await entities.ref(PlaysActor.self, address(device)).ask(message, timeout: try call.timeLeft())
        reports.increment(by: Int64(plays.count))
    }

    /// - Throws: 21031 if a field is not what the contract says.
    private static func check(_ play: ClientPlayReport) throws(ApusError) {
        func isName(_ text: String) -> Bool {
            text.utf8.count <= codecByteCountMax
                && text.utf8.allSatisfy { (0x30...0x39).contains($0) || (0x41...0x5a).contains($0 & 0xdf) }
        }
        let isValid =
            isSession(play.session) && play.stepsMs.count <= ClientPlayReport.stepCount
            && play.codecs.count <= ClientPlayReport.codecsMax
            && (play.codecs + [play.missingDecoder]).allSatisfy(isName)
        guard isValid else { throw ApusError(.badParameter, "a report is not valid") }
    }

    private static func isSession(_ text: String) -> Bool {
        text.utf8.count == 32
            && text.utf8.allSatisfy { (0x30...0x39).contains($0) || (0x61...0x66).contains($0) }
    }

    // MARK: - The diagnosis

    private func diagnose(
        _ request: ClientDiagnoseRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientDiagnosis {
        let device = try DeviceID(checking: request.device, "the device's id")
        guard request.session.isEmpty || Self.isSession(request.session) else {
            throw ApusError(.badParameter, "a session has 32 hexadecimal digits")
        }
        let record = try await records.record(of: device)
        // An operator asks about devices that have never signed in, too.
        let isAllowed =
            record.map { call.session.mayKnow($0) }
            ?? (call.session.role == .admin && call.session.allowedDevices?.contains(device) ?? true)
        guard isAllowed else { throw Self.unknown }
        var view = ClientDiagnosisView()
        var plays: [(report: ClientPlayReport, ageMs: UInt64)] = []
        if let record {
            let seen = try await records.lastSeen(of: [device]).first ?? 0
            (view, plays) = await look(at: record, request.source, call)
            (view.known, view.bound, view.disabled) = (true, record.account != nil, record.isDisabled)
            let bound = (record.boundAtUnixMilliseconds ?? 0) / 1000
            view.lastSeen = max((record.lastSeenUnixMilliseconds ?? 0) / 1000, seen >= bound ? seen : 0)
        }
        var play = plays.first
        if !request.session.isEmpty {
            play = plays.first { $0.report.session == request.session }
            guard play != nil else { throw ApusError(.targetUnknown, "no report of this session is kept") }
        }
        var answer = DiagnosisStage.diagnose(
            DiagnosisEvidence(
                device: request.device, source: request.source, view: view, play: play?.report,
                nowSeconds: WallClock.milliseconds() / 1000))
        answer.reportedMs = play?.ageMs ?? 0
        answer.sessions = plays.map(\.report.session)
        return answer
    }

    /// What the device's owner sees, and the reports of the source that the caller may see, the newest one first.
    private func look(
        at record: DeviceRecord, _ source: UInt32, _ call: ClientCall
    ) async -> (view: ClientDiagnosisView, plays: [(report: ClientPlayReport, ageMs: UInt64)]) {
        let message = PlaysLook.with {
            ($0.device, $0.source, $0.dataSinceMs) = (record.device.rawValue, source, record.dataSince)
            // The presence of a disabled device cannot be asked for.
            $0.account = record.isDisabled ? "" : record.account?.rawValue ?? ""
        }
        do throws(ApusError) {
            let timeout = min(try call.timeLeft(), Self.ownerTimeout)
            let answer = try await entities.ref(PlaysActor.self, address(record.device)).ask(message, timeout: timeout)
            guard let view = try? ClientDiagnosisView(serializedBytes: answer.view) else { throw ApusError(.malformed) }
            // An app sees what its own account has played; an operator and the device's integrator see all.
            let own = call.session.role == .app ? call.session.account.rawValue : nil
            return (view, answer.plays.compactMap { Self.play($0, source, of: own) })
        } catch {
            return (
                .with { ($0.channelError, $0.deviceError) = (error.code.number, error.code.number) }, []
            )
        }
    }

    private static func play(
        _ kept: PlaysPlay, _ source: UInt32, of account: String?
    ) -> (report: ClientPlayReport, ageMs: UInt64)? {
        guard account.map({ kept.account == $0 }) ?? true,
            let report = try? ClientPlayReport(serializedBytes: kept.report), report.source == source
        else { return nil }
        return (report, kept.ageMs)
    }
}
