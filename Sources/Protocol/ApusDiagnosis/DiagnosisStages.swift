package import ApusContract
import ApusCore
import SwiftProtobuf

// Why a picture is black (IV-G9). The stages stand in the order in which a picture passes them, and each is judged by
// itself. Of the stages that are broken the first one is guilty, since those behind it cannot work. If none is broken,
// the first one that is slow is guilty (IV-G4).

/// One stage on the way of a picture: its name, and the rule that judges it.
package struct DiagnosisStage: Sendable {
    package var name: String
    package var judge: @Sendable (DiagnosisEvidence) -> Finding

    package init(_ name: String, _ judge: @escaping @Sendable (DiagnosisEvidence) -> Finding) {
        (self.name, self.judge) = (name, judge)
    }

    /// What is known of a stage.
    package struct Finding: Sendable, Hashable {
        package enum State: Sendable, Hashable { case works, slow, broken, unknown }

        package var state: State
        /// The part of the key after the stage's name.
        package var key: String
        package var text: String
        package var number: Double = 0
        /// Empty: there is no number.
        package var unit = ""

        static func works(_ text: String, _ number: Int64? = nil, _ unit: String = "ms") -> Self {
            make(.works, "ok", text, number, unit)
        }
        static func slow(_ text: String, _ number: Int64, _ unit: String = "ms") -> Self {
            make(.slow, "slow", text, number, unit)
        }
        static func broken(_ key: String, _ text: String, _ number: Int64?, _ unit: String = "ms") -> Self {
            make(.broken, key, text, number, unit)
        }
        static func unknown(_ text: String) -> Self { make(.unknown, "unknown", text, nil, "") }

        private static func make(
            _ state: State, _ key: String, _ text: String, _ number: Int64?, _ unit: String
        ) -> Self {
            Self(
                state: state, key: key, text: text, number: Double(number ?? 0), unit: number == nil ? "" : unit)
        }
    }
}

extension DiagnosisStage {
    /// More is slow: the connection, the data, the decoding or the rendering (IV-G4).
    package static let slowMs: Int64 = 1000
    /// A stream without a frame for this long has stopped. Cameras with one picture in a second are not stopped.
    package static let stoppedMs: Int64 = 2000

    /// The stages of a live picture, in order.
    package static let live: [DiagnosisStage] = [
        DiagnosisStage("network", network), DiagnosisStage("device", device),
        DiagnosisStage("publisher", publisher), DiagnosisStage("header", header), DiagnosisStage("codec", codec),
        DiagnosisStage("data", data), DiagnosisStage("decode", decode), DiagnosisStage("render", render),
    ]

    /// Judges the stages in their order, and names the guilty one. Pure.
    package static func diagnose(
        _ evidence: DiagnosisEvidence, stages: [DiagnosisStage] = live
    ) -> ClientDiagnosis {
        let findings = stages.map { $0.judge(evidence) }
        let guilty =
            findings.firstIndex { $0.state == .broken } ?? findings.firstIndex { $0.state == .slow }
        var answer = ClientDiagnosis()
        (answer.device, answer.source) = (evidence.device, evidence.source)
        for (index, (stage, finding)) in zip(stages, findings).enumerated() {
            answer.stages.append(
                message(stage.name, finding, index, guilty: guilty, guiltyName: guilty.map { stages[$0].name }))
        }
        if let guilty {
            (answer.guilty, answer.text) = (stages[guilty].name, findings[guilty].text)
        } else {
            answer.text = "Nothing is wrong that the cluster or the app can see."
        }
        if let view = evidence.view { answer.view = view }
        if let play = evidence.play { answer.play = play }
        return answer
    }

    private static func message(
        _ name: String, _ finding: Finding, _ index: Int, guilty: Int?, guiltyName: String?
    ) -> ClientDiagnosisStage {
        .with {
            ($0.name, $0.key, $0.text) = (name, "\(name).\(finding.key)", finding.text)
            ($0.number, $0.unit) = (finding.number, finding.unit)
            switch finding.state {
            case _ where index == guilty: $0.state = .guilty
            case .works: $0.state = .ok
            case .unknown: $0.state = .unknown
            // It is slow, but that is not why there is no picture.
            case .slow: $0.state = .ok
            case .broken:
                $0.state = .unknown
                ($0.key, $0.number, $0.unit) = ("\(name).blocked", 0, "")
                $0.text = "It cannot work because of the stage \(guiltyName ?? "")."
            }
        }
    }
}
