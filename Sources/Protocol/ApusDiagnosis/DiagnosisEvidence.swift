package import ApusContract
import ApusCore

/// What is known of a stream that shows no picture: the cluster's view of the channel, and an app's report of its play
/// session (IV-G4, IV-G9). Either may be missing.
package struct DiagnosisEvidence: Sendable {
    package var device: String
    package var source: UInt32
    /// Nil: the cluster was not asked, or does not answer.
    package var view: ClientDiagnosisView?
    /// Nil: no app has reported.
    package var play: ClientPlayReport?
    /// The clock of whoever judges, in Unix seconds.
    package var nowSeconds: Int64

    package init(
        device: String, source: UInt32, view: ClientDiagnosisView?, play: ClientPlayReport?, nowSeconds: Int64
    ) {
        (self.device, self.source, self.view, self.play, self.nowSeconds) = (device, source, view, play, nowSeconds)
    }
}

extension ClientPlayReport {
    /// The 13 steps of a play session (IV-G3).
    package enum Step: Int, Sendable, Hashable, CaseIterable {
        case create = 1
        case connecting, connected, header, codecs, renderers, packet, decoded, rendered
        case stop, codecsClosed, renderersStopped, released
    }

    /// The time of a step in milliseconds after the first one; nil: it was not reached.
    package func time(of step: Step) -> Int64? {
        guard stepsMs.count >= step.rawValue, stepsMs[step.rawValue - 1] > 0 else { return nil }
        return Int64(stepsMs[step.rawValue - 1]) - 1
    }

    /// The time between two steps, in milliseconds; nil unless both were reached.
    package func time(from first: Step, to second: Step) -> Int64? {
        guard let start = time(of: first), let end = time(of: second) else { return nil }
        return max(0, end - start)
    }

    /// The time since a step until the report, in milliseconds; nil: it was not reached.
    package func time(since step: Step) -> Int64? { time(of: step).map { max(0, Int64(ageMs) - $0) } }

    /// True until the stream is stopped.
    package var isOpen: Bool { time(of: .stop) == nil && streamError == 0 }
    /// The app decodes with the SDK, so that the steps 5, 6, 8 and 9 are reported.
    package var isRendered: Bool { rendersPictures || rendersSound }

    /// The three figures of a session (IV-G4), in milliseconds; nil: its last step was not reached.
    package var connectMs: Int64? { time(from: .create, to: .connected) }
    package var dataMs: Int64? { time(from: .connected, to: .packet) }
    package var renderMs: Int64? { time(from: .packet, to: .rendered) }
}

/// An age of a message: milliseconds plus one, 0 for none.
package func age(_ field: UInt64) -> Int64? { field == 0 ? nil : Int64(clamping: field - 1) }
