package import ApusCore

extension AnsweringService {
    package static let metrics: [MetricDescription] = [
        .counter(
            "apus_answering_messages_total", "messages",
            [
                .init(
                    "result",
                    "`stored`, `empty` because the caller sent nothing, or `failed` because of the record store")
            ],
            "Messages that answering machines have taken at this node, by how they ended."),
        .counter(
            "apus_answering_messages_cut_total", "messages",
            "Messages that had their largest size (`answering.message_bytes_max`)."),
        .counter(
            "apus_answering_refused_total", "calls",
            "Calls that no answering machine takes, because it has too many messages (`answering.messages_max`)."),
        .gauge("apus_answering_recordings", "messages", "Messages that this node records."),
    ]
}
