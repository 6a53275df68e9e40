package import ApusCore

extension SignInService {
    package static let metrics: [MetricDescription] = [
        .counter(
            "apus_sign_ins_total", "browsers",
            [.init("result", "`signed_in`, `refused`, `limited` or `signed_out`")],
            "Browsers that have signed in or out, and attempts that were refused, or not tried because of their number."
        )
    ]
}
