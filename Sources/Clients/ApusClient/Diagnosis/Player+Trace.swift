public import ApusContract
public import ApusCore
import ApusDiagnosis
import ApusMedia
import NIOCore
import SwiftProtobuf

// The play session of a player: its steps, and its reports (IV-G3, IV-G4). Live streams of devices have one; calls and
// recordings have none yet.

extension ClientSession {
    /// Sends the report of a play session that is due, if the session is connected.
    func report(_ trace: PlayTrace) {
        eventLoop.execute { [self] in
            trace.change { $0.linkChanged(isConnected: active != nil) }
            guard active != nil, configuration.reportsPlays, configuration.role == .app, let report = trace.nextReport()
            else { return }
            post(ClientReportPlaysRequest.with { $0.plays = [report] })
        }
    }

    /// Asks the cluster why the picture of a device does not come (IV-G9).
    ///
    /// If the cluster cannot be reached, or knows nothing of the device, the steps of the app's own player are judged
    /// alone.
    ///
    /// - Parameters:
    ///   - source: the number of the device's source.
    ///   - player: the player without a picture; nil: the newest one of the account.
    /// - Returns: the stages in their order, with the name of the guilty one. Later releases may have more stages.
    /// - Throws: the error of the cluster if there is no player.
    public func diagnose(
        _ device: DeviceID, source: UInt16 = 0, player: Player? = nil
    ) async throws(ApusError) -> ClientDiagnosis {
        let own = await player?.currentReport()
        let request = ClientDiagnoseRequest.with { ($0.device, $0.source) = (device.rawValue, UInt32(source)) }
        do throws(ApusError) {
            let answer = try await ask(request)
            guard let own else { return answer }
            // What the player has noticed since its last report counts, too.
            return judge(device, source, answer.view, own)
        } catch {
            guard let own else { throw error }
            return judge(device, source, nil, own)
        }
    }

    private func judge(
        _ device: DeviceID, _ source: UInt16, _ view: ClientDiagnosisView?, _ report: ClientPlayReport
    ) -> ClientDiagnosis {
        DiagnosisStage.diagnose(
            DiagnosisEvidence(
                device: device.rawValue, source: UInt32(source), view: view, play: report,
                nowSeconds: WallClock.milliseconds() / 1000))
    }
}
