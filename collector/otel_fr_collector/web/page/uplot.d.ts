declare const plot: any;
export default plot;
