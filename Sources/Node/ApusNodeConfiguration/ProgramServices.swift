import ApusAnswering
import ApusCalls
package import ApusClientAPI
import ApusCluster
import ApusCommands
package import ApusCore
import ApusDeviceAuthorization
import ApusDiagnosisService
import ApusDialogs
import ApusEvents
import ApusFirmware
import ApusRecordings
import ApusSessions
import ApusSignIn
import ApusSpeech
package import ApusStorage
import ApusThings
import ApusTimers
import Synchronization

/// The services of the nodes of this program: their list, and what is known of it without a node.
package enum ProgramServices {
    /// Those of Apus. A service finds those before it.
    private static let own: [any NodeService.Type] = [
        ProductService.self, CommandService.self, ThingService.self, TimerService.self, EventService.self,
        AnsweringService.self, CallService.self, FirmwareService.self, DialogService.self,
        SpeechService.self, DeviceAuthorizationService.self, SignInService.self, RecordingService.self,
        DiagnosisService.self,
    ]

    private static let carried = Mutex<[any NodeService.Type]>([])

    /// All services, in the order in which they are created.
    package static var all: [any NodeService.Type] { own + carried.withLock(\.self) }

    /// Adds the services of a binary. Called once, before a configuration is read.
    package static func carry(_ services: [any NodeService.Type]) { carried.withLock { $0 = services } }

    /// All collections of records.
    package static var records: RecordCatalogue {
        RecordCatalogue(merging: [ClusterRecords.catalogue, SessionRecords.catalogue] + all.map { $0.records })
    }

    /// All metrics, in the order of the reference.
    package static var metrics: [MetricCatalogue.Section] {
        MetricCatalogue.sections
            + all.filter { !$0.metrics.isEmpty }.map { MetricCatalogue.Section(title: $0.name, metrics: $0.metrics) }
    }

    /// All metrics by name.
    package static var metricsByName: [String: MetricDescription] { MetricCatalogue.byName(metrics) }
}
