package import ApusCore

extension DialogService {
    package static let metrics: [MetricDescription] = [
        .counter(
            "apus_dialog_sentences_total", "sentences",
            [.init("result", "`understood` or `not_understood`")],
            "Sentences that were said to devices, by whether they were understood."),
        .gauge("apus_dialogs_running", "sentences", "Sentences that this node carries out at the moment."),
    ]
}
