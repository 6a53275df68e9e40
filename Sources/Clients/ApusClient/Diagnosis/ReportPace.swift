package import ApusContract
package import ApusCore
import ApusDiagnosis

/// When a play session is reported: when something has changed that a diagnosis tells apart, but not more often than
/// every ``interval``, and not more than ``reportsMax`` times. The end is always reported.
///
/// Pure: times are passed in.
package struct ReportPace: Sendable {
    package static let interval = Duration.seconds(1)
    /// A session that changes all the time is reported no more.
    package static let reportsMax: UInt32 = 120

    /// What a diagnosis tells apart.
    private struct Condition: Hashable {
        var steps: [Bool]
        var stages: [String]
        var errors: [Int32]
        var missing: String
        var isSkewed: Bool
    }

    private var last: (condition: Condition, at: MonotonicTime)?
    private var number: UInt32 = 0

    package init() {}

    /// The number of the report, if it is due.
    package mutating func next(_ report: ClientPlayReport, now: MonotonicTime) -> UInt32? {
        let condition = Self.condition(of: report)
        if let last {
            guard condition != last.condition else { return nil }
            let isEnd = report.time(of: .stop) != nil || !report.isOpen
            guard isEnd || (now - last.at >= Self.interval && number < Self.reportsMax) else { return nil }
        }
        last = (condition, now)
        number += 1
        return number
    }

    private static func condition(of report: ClientPlayReport) -> Condition {
        let evidence = DiagnosisEvidence(
            device: report.device, source: report.source, view: nil, play: report, nowSeconds: 0)
        return Condition(
            steps: report.stepsMs.map { $0 > 0 },
            stages: DiagnosisStage.diagnose(evidence).stages.map { "\($0.key) \($0.state)" },
            errors: [report.streamError, report.decodeError, report.renderError], missing: report.missingDecoder,
            isSkewed: abs(report.skewMs) > 1000)
    }
}
