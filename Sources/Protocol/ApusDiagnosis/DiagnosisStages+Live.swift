import ApusContract
import ApusCore

// The rules of the stages of a live picture, in the order of IV-G9.

extension DiagnosisStage {
    /// The app's way to the cluster: steps 1 to 3.
    @Sendable static func network(_ evidence: DiagnosisEvidence) -> Finding {
        guard let play = evidence.play else { return .unknown("No app has reported a stream of this device.") }
        if let time = play.connectMs {
            return time > slowMs
                ? .slow("The app needed \(time) ms until the cluster had granted the stream.", time)
                : .works("The app was connected after \(time) ms.", time)
        }
        // A refusal is an answer.
        guard play.streamError == 0 else { return .works("The cluster has answered the app.") }
        let time = Int64(clamping: play.ageMs)
        guard time > slowMs else { return .unknown("The app is connecting.") }
        return play.connected
            ? .broken("no_answer", "The app waits for the cluster's answer since \(time) ms.", time)
            : .broken("unreachable", "The app reaches no node of the cluster since \(time) ms.", time)
    }

    /// Whether the device is there, and answers.
    @Sendable static func device(_ evidence: DiagnosisEvidence) -> Finding {
        if let refusal = refusal(evidence.play) { return refusal }
        guard let view = evidence.view else { return .unknown("The cluster was not asked about the device.") }
        guard view.known else { return .broken("unknown", "The cluster knows no device of this id.", 8002, "error") }
        guard view.bound else { return .broken("unbound", "The device belongs to no account.", 8002, "error") }
        guard !view.disabled else { return .broken("disabled", "The device is disabled.", 20011, "error") }
        guard view.deviceError == 0 else {
            return .unknown("The node with the device's session does not answer (\(view.deviceError)).")
        }
        switch view.online {
        case 0: return away(view, evidence.nowSeconds)
        case 2:
            let time = max(0, evidence.nowSeconds - view.onlineTime)
            return .broken("asleep", "The device sleeps since \(time) s.", time, "s")
        default: break
        }
        if let time = age(UInt64(view.answeredMs)) { return .works("The device answered in \(time) ms.", time) }
        guard !view.node.isEmpty || view.publishingMs > 0 else {
            return .broken("lost", "The device's connection has just ended.", 0, "s")
        }
        // Frames are an answer, too.
        if let frame = age(view.frameMs), frame <= slowMs {
            return .works("The device sent a frame \(frame) ms ago.", frame)
        }
        guard view.asked else { return .works("The device is connected to the node \(view.node).") }
        return .broken(
            "silent", "The device is connected to the node \(view.node), but did not answer in a second.", 1000)
    }

    private static func away(_ view: ClientDiagnosisView, _ now: Int64) -> Finding {
        guard view.lastSeen > 0 else { return .broken("away", "The device has never been connected.", 0, "s") }
        let time = max(0, now - view.lastSeen)
        return .broken("away", "The device is not connected. It was seen \(time) s ago.", time, "s")
    }

    /// What the cluster has answered the app about the device.
    private static func refusal(_ play: ClientPlayReport?) -> Finding? {
        guard let play, play.streamError != 0 else { return nil }
        let number = Int64(play.streamError)
        switch ErrorCode(number: play.streamError) {
        case .targetUnknown: return .broken("unknown", "The cluster knows no device of this id.", number, "error")
        case .illegalRelation:
            return .broken("forbidden", "The app's account has no right to the device.", number, "error")
        case .deviceDisabled: return .broken("disabled", "The device is disabled.", number, "error")
        default:
            return .broken("refused", "The cluster has ended the stream with the error \(number).", number, "error")
        }
    }

    /// Whether the device publishes the source.
    @Sendable static func publisher(_ evidence: DiagnosisEvidence) -> Finding {
        guard let view = evidence.view, view.channelError == 0 else {
            return .unknown("The node to which the device publishes was not asked.")
        }
        guard let time = age(view.publishingMs) else {
            return .broken(
                "none", "The device is connected, but publishes no stream of the source \(evidence.source).", 0,
                "streams")
        }
        return .works("The device has published to the node \(view.primary) for \(time) ms.", time)
    }

    /// Whether the stream has a header, that is, a configuration of each track (IV-C9).
    @Sendable static func header(_ evidence: DiagnosisEvidence) -> Finding {
        if let view = evidence.view, view.channelError == 0 {
            guard view.codecs.isEmpty else {
                return .works("The stream has a header.", Int64(view.codecs.count), "tracks")
            }
            guard let time = age(view.publishingMs) else { return .unknown("Nothing is published.") }
            guard time > slowMs else { return .unknown("The stream has just begun.") }
            return .broken(
                "missing", "The device has sent no header in \(time) ms, so no decoder can be made.", time)
        }
        guard let play = evidence.play, play.time(of: .header) != nil else {
            return .unknown("The app has received no header.")
        }
        return .works("The app has received the header.", Int64(play.codecs.count), "tracks")
    }

    /// Whether the app can decode what is sent, and whether there is a picture in it.
    @Sendable static func codec(_ evidence: DiagnosisEvidence) -> Finding {
        if let play = evidence.play, !play.missingDecoder.isEmpty {
            return .broken("no_decoder", "The app has no decoder for \(play.missingDecoder).", 1, "tracks")
        }
        let known = evidence.view.map(\.codecs) ?? []
        let codecs = known.isEmpty ? evidence.play?.codecs ?? [] : known
        guard !codecs.isEmpty else { return .unknown("The codecs are not known.") }
        let names = codecs.joined(separator: " and ")
        let wantsPictures = evidence.play.map { $0.rendersPictures || !$0.rendersSound } ?? true
        guard !wantsPictures || codecs.contains(where: { pictureCodecs.contains($0) }) else {
            return .broken("no_picture", "The stream has no pictures, only \(names).", 0, "tracks")
        }
        return .works("The stream has \(names).", Int64(codecs.count), "tracks")
    }

    private static let pictureCodecs = ["h264", "h265"]

    /// Whether frames flow: to the cluster, and from there to the app.
    @Sendable static func data(_ evidence: DiagnosisEvidence) -> Finding {
        if let view = evidence.view, view.channelError == 0, let finding = flow(view) { return finding }
        guard let play = evidence.play else {
            guard let frame = evidence.view.flatMap({ age($0.frameMs) }) else {
                return .unknown("Whether frames flow is not known.")
            }
            return .works("The cluster received a frame \(frame) ms ago.", frame)
        }
        guard let time = play.dataMs else {
            guard play.isOpen, let time = play.time(since: .connected), time > slowMs else {
                return .unknown("The app has received no frame.")
            }
            return .broken("path", "The app has received no frame in \(time) ms, although the cluster has some.", time)
        }
        if play.isOpen, let last = age(play.receivedMs), last > stoppedMs {
            return .broken("path", "The app has received no frame for \(last) ms, although the cluster has some.", last)
        }
        return time > slowMs
            ? .slow("The first frame came \(time) ms after the stream was granted.", time)
            : .works("The first frame came after \(time) ms.", time)
    }

    /// What is wrong with the frames that the cluster receives; nil: they flow, or nothing is published.
    private static func flow(_ view: ClientDiagnosisView) -> Finding? {
        guard let publishing = age(view.publishingMs) else {
            return .unknown("Nothing is published.")
        }
        guard let frame = age(view.frameMs) else {
            guard publishing > slowMs else { return .unknown("The stream has just begun.") }
            return .broken("none", "The device has sent no frame in \(publishing) ms.", publishing)
        }
        guard frame <= stoppedMs else {
            return .broken("stopped", "The device has sent no frame for \(frame) ms.", frame)
        }
        guard view.keyMs == 0, publishing > slowMs else { return nil }
        return .broken(
            "no_key", "The device has sent no key frame in \(publishing) ms, so no decoder can begin.", publishing)
    }

    /// Steps 7 and 8.
    @Sendable static func decode(_ evidence: DiagnosisEvidence) -> Finding {
        guard let play = evidence.play, play.isRendered else {
            return .unknown("No app that decodes with the SDK has reported.")
        }
        guard play.decodeError == 0 else {
            return .broken(
                "failed", "The app's decoder has failed with the error \(play.decodeError).", Int64(play.decodeError),
                "error")
        }
        guard let waiting = play.time(since: .packet) else { return .unknown("The app has received no frame.") }
        guard let time = play.time(from: .packet, to: .decoded) else {
            guard waiting > slowMs else { return .unknown("The app has just received the first frame.") }
            return .broken(
                "none", "The app has received frames for \(waiting) ms and decoded none of them.", waiting)
        }
        let isFed = age(play.receivedMs).map { $0 <= slowMs } ?? false
        if play.isOpen, isFed, let last = age(play.decodedMs), last > stoppedMs, !isRenderingBehind(play) {
            return .broken("stopped", "The app has decoded nothing for \(last) ms.", last)
        }
        return time > slowMs
            ? .slow("The first frame was decoded \(time) ms after it had come.", time)
            : .works("The first frame was decoded after \(time) ms.", time)
    }

    /// One thread decodes and renders: while a renderer blocks, nothing is decoded.
    private static func isRenderingBehind(_ play: ClientPlayReport) -> Bool { play.rendered < play.decoded }

    /// Steps 8 and 9.
    @Sendable static func render(_ evidence: DiagnosisEvidence) -> Finding {
        guard let play = evidence.play, play.isRendered else {
            return .unknown("No app that renders with the SDK has reported.")
        }
        guard play.renderError == 0 else {
            return .broken(
                "failed", "The app's renderer has failed with the error \(play.renderError).",
                Int64(play.renderError), "error")
        }
        guard let waiting = play.time(since: .decoded) else { return .unknown("The app has decoded nothing.") }
        guard let time = play.time(from: .decoded, to: .rendered) else {
            guard waiting > slowMs else { return .unknown("The app has just decoded the first frame.") }
            return .broken(
                "none", "The app's renderer has shown nothing for \(waiting) ms after the first frame was decoded.",
                waiting)
        }
        if play.isOpen, isRenderingBehind(play), let last = age(play.renderedMs), last > stoppedMs {
            return .broken("stopped", "The app's renderer has shown nothing for \(last) ms.", last)
        }
        let median = Int64(play.renderMedianMs)
        if median > slowMs {
            return .slow("A frame is shown \(median) ms after it has come (median).", median)
        }
        return time > slowMs
            ? .slow("The first picture was shown \(time) ms after it was decoded.", time)
            : .works("The first picture was shown after \(time) ms.", time)
    }
}
