import ApusChannels
package import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
import ApusDiagnosis
import ApusSessions
import ApusStorage
import CoreMetrics
import Foundation
import SwiftProtobuf

/// Why a picture is black (IV-G1 to IV-G9, docs/diagnosis.md): apps report how their streams have begun, and a request
/// names the stage that is guilty.
///
/// The reports of a device, its session and its channel are at one node, the owner of its shard. That node is asked for
/// all three at once. The node of the request reads the records, and judges (``ApusDiagnosis/DiagnosisStage``).
///
/// Isolation: `Sendable`; the play sessions of a device are an actor at its owner.
package struct DiagnosisService: NodeService {
    package static let name = "Diagnosis"

    let records: SessionRecords
    let sessions: SessionService
    let channels: ChannelService
    let entities: EntityRegistry
    let node: String
    let reports = Counter(label: "apus_diagnosis_reports_total")
    let dropped = Counter(label: "apus_diagnosis_dropped_total")
    let requests = Counter(label: "apus_diagnosis_requests_total")

    package init(_ configuration: DiagnosisConfiguration, of node: NodeContext) throws(ApusError) {
        (records, sessions, entities) = (SessionRecords(node.records), node.sessions, node.entities)
        channels = try node.ports.one(ChannelService.self)
        self.node = node.view.local.name.rawValue
        let options = EntityOptions<PlaysActor>(
            make: { [configuration] _ in PlaysActor(configuration) }, passivateAfter: configuration.keepTime)
        node.entities.register(.plays, options: options) { [self] handlers in
            handlers.on(PlaysKeep.self) { plays, message throws(ApusError) in
                dropped.increment(by: Int64(try await plays.keep(message)))
                return PlaysKept()
            }
            handlers.on(PlaysLook.self) { plays, message throws(ApusError) in
                // A former account learns nothing of the device.
                _ = try await plays.look(message.dataSinceMs)
                let view = await view(of: message)
                let found = try await plays.look(message.dataSinceMs)
                guard let bytes: [UInt8] = try? view.serializedBytes() else { throw ApusError(.internalFailure) }
                return .with { ($0.view, $0.plays) = (Data(bytes), found) }
            }
        }
    }

    package func add(to api: inout ClientAPI) {
        api.addSchemas(diagnosisSchemas)
        addRequests(to: &api)
    }

    func address(_ device: DeviceID) -> EntityAddress { EntityAddress(kind: .plays, key: device.rawValue) }

    // MARK: - At the owner

    /// What this node sees of a device and its channel.
    private func view(of message: PlaysLook) async -> ClientDiagnosisView {
        var view = ClientDiagnosisView()
        view.primary = node
        guard let device = DeviceID(rawValue: message.device) else { return view }
        let facts = await channels.facts(of: ChannelID(device: device, source: UInt16(clamping: Int(message.source))))
        if let facts { Self.note(facts, in: &view) }
        guard let account = AccountID(rawValue: message.account) else { return view }
        do throws(ApusError) {
            let location = try await sessions.locate(device, for: account)
            (view.online, view.onlineTime) = (location.presence.online.rawValue, location.presence.time)
            guard let place = location.place else { return view }
            view.node = place.node.name.rawValue
            // A device whose frames arrive is there.
            guard location.presence.online == .online, view.frameMs == 0 || view.frameMs > Self.freshMs else {
                return view
            }
            switch await sessions.probe(place) {
            case .notAsked: break
            case .silent: view.asked = true
            case .answered(let time):
                (view.asked, view.answeredMs) = (true, UInt32(clamping: Int(time.milliseconds) + 1))
            }
        } catch {
            view.deviceError = error.code.number
        }
        return view
    }

    /// A frame of this age says that the device is there, in milliseconds.
    private static let freshMs: UInt64 = 500

    private static func note(_ facts: ChannelFacts, in view: inout ClientDiagnosisView) {
        func field(_ age: Duration?) -> UInt64 { age.map { UInt64(max(0, $0.milliseconds)) + 1 } ?? 0 }
        (view.publishing, view.publishingMs) = (facts.publishing != nil, field(facts.publishing))
        (view.frameMs, view.keyMs) = (field(facts.frame), field(facts.key))
        view.configurationMs = field(facts.configuration)
        view.codecs = facts.codecs.map { "\($0)" }
        view.standby = facts.standby?.name.rawValue ?? ""
        (view.protected, view.viewers) = (facts.isProtected, UInt32(clamping: facts.viewers))
    }
}
