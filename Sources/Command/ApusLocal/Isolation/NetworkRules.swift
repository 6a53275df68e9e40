/// The nftables rules for the faults of an isolated cluster, in the namespace of the bridge, through which every packet
/// between two endpoints passes once. A dropped packet disappears without an error for its sender, as on a wire. A rule
/// in the sender's own namespace would be reported to it (EPERM).
///
/// Only IPv4 packets are dropped. Address resolution (ARP) works across a cut, because between machines in different
/// networks it is not involved: a connection through a cut times out, and is not refused with EHOSTUNREACH.
package enum NetworkRules {
    /// The rules' own table, of the family `bridge`.
    package static let table = "apus_faults"

    /// The text for `nft -f`, which replaces all earlier rules of the table in one step.
    ///
    /// The operator's packets are not dropped. The rules of both endpoints apply to a packet, so between two endpoints
    /// with a loss of 10 % each, 19 % of the packets are lost.
    package static func text(
        _ faults: NetworkFaults, endpoints: [NetworkPlan.Endpoint], plan: NetworkPlan
    ) -> String {
        let replaced = "table bridge \(table)\ndelete table bridge \(table)\n"
        let rules = rules(faults, endpoints: endpoints, stores: plan.stores)
        guard !rules.isEmpty else { return replaced }
        let head = [
            "type filter hook forward priority 0; policy accept;", "ip saddr \(plan.operatorAddress) accept",
            "ip daddr \(plan.operatorAddress) accept",
        ]
        let lines = (head + rules).map { "        \($0)\n" }.joined()
        return replaced + "table bridge \(table) {\n    chain forward {\n\(lines)    }\n}\n"
    }

    private static func rules(
        _ faults: NetworkFaults, endpoints: [NetworkPlan.Endpoint], stores: [String]
    ) -> [String] {
        var rules: [String] = []
        func address(_ name: String) -> String? { endpoints.first { $0.name == name }?.address }
        for cut in faults.cuts {
            guard let from = address(cut.from), let to = address(cut.to) else { continue }
            rules.append("ip saddr \(from) ip daddr \(to) counter drop")
        }
        for endpoint in endpoints where faults.storeCuts.contains(endpoint.name) {
            for store in stores {
                rules.append("ip saddr \(endpoint.address) ip daddr \(store) counter drop")
                rules.append("ip saddr \(store) ip daddr \(endpoint.address) counter drop")
            }
        }
        for endpoint in endpoints {
            guard let percent = faults.losses[endpoint.name] else { continue }
            for side in ["saddr", "daddr"] {
                rules.append("ip \(side) \(endpoint.address) numgen random mod 100 < \(percent) counter drop")
            }
        }
        return rules
    }
}
